"""handlers.picture: what becomes a picture, and what is refused for good."""

from __future__ import annotations

import contextlib
import io
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from handlers import picture
from handlers.options import PictureOptions
from supervisor import Fail

Image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra ml")

OPTIONS = PictureOptions()


def encoded(image: Any, format: str = "PNG", **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **settings)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "red.png").write_bytes(encoded(Image.new("RGB", (8, 6), "red")))
    (tmp_path / "text.jpg").write_text("this is no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes(encoded(Image.effect_noise((64, 64), 50))[:-900])
    (tmp_path / "subfolder").mkdir()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path


def test_a_picture_comes_back_as_rgb(folder: Path) -> None:
    image = picture.load({"path": str(folder / "red.png")}, OPTIONS)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (8, 6), (255, 0, 0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.png", "no such file"),
        ("red.png/x.png", "no such file"),
        ("x" * 300, "no such file"),
        ("nul\0.png", "no such file"),
        ("\ud800.png", "no such file"),
        ("subfolder", "a directory, not a file"),
        ("pipe.png", "not a regular file"),
        ("loop.png", "a loop of symbolic links"),
        ("text.jpg", "not a picture in a format"),
        ("empty.png", "the file is empty"),
        ("cut.png", "a damaged picture"),
    ],
)
def test_what_no_attempt_can_read_fails_for_good(folder: Path, name: str, message: str) -> None:
    with pytest.raises(Fail, match=message):
        picture.load({"path": f"{folder}/{name}"}, OPTIONS)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "has no path"),
        ({"path": None}, "has no path"),
        ({"path": 7}, "must be a string"),
        ({"path": ["a.png"]}, "must be a string"),
        ({"path": " "}, "must be a string that is not empty"),
        ({"path": "a.png", "url": "http://a/b.png"}, "both a path and a url"),
        ({"url": "ftp://a/b.png"}, "must begin with http"),
        ({"url": "/etc/passwd"}, "must begin with http"),
        (["a.png"], "must be an object"),
        ("a.png", "must be an object"),
    ],
)
def test_a_payload_without_a_usable_path_fails_for_good(payload: Any, message: str) -> None:
    with pytest.raises(Fail, match=message):
        picture.load(payload, OPTIONS)


@pytest.mark.parametrize(
    "payload",
    [{"path": "http://a.example/b.png"}, {"path": " HTTPS://a.example/b"}, {"url": "https://a.example/b"}],
)
def test_urls_are_refused_unless_the_options_allow_them(payload: Any) -> None:
    with pytest.raises(Fail, match="URLs are refused: set options"):
        picture.load(payload, OPTIONS)


def test_a_file_without_permission_fails_for_good(folder: Path) -> None:
    (folder / "red.png").chmod(0)
    if os.access(folder / "red.png", os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(Fail, match="no permission"):
        picture.load({"path": str(folder / "red.png")}, OPTIONS)


def test_a_file_above_max_bytes_is_not_decoded(folder: Path) -> None:
    size = (folder / "red.png").stat().st_size
    payload = {"path": str(folder / "red.png")}
    assert picture.load(payload, PictureOptions(max_bytes=size)).size == (8, 6)
    with pytest.raises(Fail, match=f"more than {size - 1} bytes"):
        picture.load(payload, PictureOptions(max_bytes=size - 1))


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    # A PNG header that promises 10 and 900 million pixels, and nothing behind it.
    small = encoded(Image.new("1", (1, 1)))
    for width, height in ((10_000, 1_000), (30_000, 30_000)):
        header = small[12:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + small[24:29]
        crc = zlib.crc32(header).to_bytes(4, "big")
        with pytest.raises(Fail, match=r"too large.* more than 1000000 pixels"):
            picture.decode(small[:12] + header + crc + small[33:], 1_000_000)


def test_a_strip_is_refused_before_a_model_blows_it_up() -> None:
    with pytest.raises(Fail, match="a strip of 1 × 1000 pixels"):
        picture.decode(encoded(Image.new("RGB", (1, 1000))), OPTIONS.max_pixels)


def test_formats_that_start_other_programs_are_not_opened() -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(Fail, match="not a picture in a format"):
        picture.decode(eps, OPTIONS.max_pixels)


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF", "JPEG", "WEBP"])
def test_every_named_format_is_read(format: str) -> None:
    image = picture.decode(encoded(Image.new("RGB", (8, 8), "white"), format), OPTIONS.max_pixels)
    assert image.getpixel((4, 4)) == (255, 255, 255)


def test_transparency_is_shown_over_white() -> None:
    for mode, colour in (("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))):
        image = picture.decode(encoded(Image.new(mode, (4, 4), colour)), OPTIONS.max_pixels)
        assert image.getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_of_grey_are_scaled_not_clipped() -> None:
    image = picture.decode(encoded(Image.new("I;16", (4, 4), 0x8000)), OPTIONS.max_pixels)
    assert image.mode == "RGB"
    assert image.getpixel((0, 0))[0] in (127, 128)


def test_a_picture_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the orientation tag: a quarter turn
    data = encoded(Image.new("RGB", (8, 4)), "JPEG", exif=exif)
    assert picture.decode(data, OPTIONS.max_pixels).size == (4, 8)


def test_random_damage_never_escapes_as_anything_but_fail() -> None:
    dice = random.Random(7)
    for format in ("PNG", "GIF", "TIFF", "JPEG", "WEBP", "BMP"):
        good = encoded(Image.effect_noise((24, 24), 80).convert("RGB"), format)
        for _ in range(60):
            bad = bytearray(good[: dice.randrange(1, len(good) + 1)])
            for _ in range(dice.randrange(4)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            with contextlib.suppress(Fail):
                assert picture.decode(bytes(bad), 1_000_000).mode == "RGB"
