"""handlers.ocr with its real models: it reads what was written into a picture here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.ocr import Reader
from supervisor import Fail

Contexts = Callable[..., Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture with two lines of text."""
    for module in ("numpy", "onnxruntime", "PIL", "cv2", "rapidocr"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} comes with the extra ocr; make test-models has it")
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (640, 200), "white")
    draw = ImageDraw.Draw(image)
    draw.text((20, 20), "Invoice 4711", fill="black", font_size=36)
    draw.text((20, 110), "Total: 128.50 EUR", fill="black", font_size=36)
    path = tmp_path_factory.mktemp("ocr") / "invoice.png"
    image.save(path)
    image.rotate(180).save(path.with_name("turned.png"))
    Image.new("RGB", (300, 200), "white").save(path.with_name("blank.png"))
    return path


def reader(context: Contexts, **options: Any) -> Reader:
    handler = Reader()
    handler.setup(context(**options))
    return handler


def test_the_lines_are_read_in_order_with_their_places(written: Path, context: Contexts) -> None:
    result = reader(context).handle({"path": str(written)}, context())
    assert result["text"] == "Invoice 4711\nTotal: 128.50 EUR"
    assert result["model"] == "pp-ocrv6-small"
    first, second = result["lines"]
    assert first["score"] > 0.9
    left, top, right, bottom = first["box"]
    assert (left, top) == (pytest.approx(20, abs=12), pytest.approx(25, abs=12))
    assert left < right < 640
    assert bottom < second["box"][1]


def test_a_picture_without_text_has_no_lines(written: Path, context: Contexts) -> None:
    result = reader(context).handle({"path": str(written.with_name("blank.png"))}, context())
    assert (result["text"], result["lines"]) == ("", [])


def test_lines_that_stand_on_their_head_are_read_if_the_option_says_so(written: Path, context: Contexts) -> None:
    turned = {"path": str(written.with_name("turned.png"))}
    assert "Invoice 4711" in reader(context, upside_down=True).handle(turned, context())["text"]
    assert "Invoice 4711" not in reader(context).handle(turned, context())["text"]


def test_what_is_no_picture_fails_for_good(written: Path, context: Contexts) -> None:
    garbage = written.with_name("garbage.png")
    garbage.write_bytes(b"no picture")
    with pytest.raises(Fail, match="not a picture"):
        reader(context).handle({"path": str(garbage)}, context())
