"""handlers.thumbnail: sizes, formats, orientation, whole files, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import Fail
from supervisor.worker.handler import Handler, HandlerError

Image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra thumbnail")

from handlers.thumbnail import Thumbnailer  # noqa: E402 - after the check

Make = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "thumbnails"
    made.mkdir()
    return made


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Landscape, 1600 × 1200, red on the left and blue on the right."""
    image = Image.new("RGB", (1600, 1200), "red")
    image.paste("blue", (800, 0, 1600, 1200))
    path = tmp_path / "photo.jpg"
    image.save(path, quality=95)
    return path


@pytest.fixture
def make(context: Callable[..., Any], folder: Path) -> Make:
    def call(payload: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        handler = Thumbnailer()
        handler.setup(context(**{"folder": str(folder), **options}))
        found: list[dict[str, Any]] = handler.handle(payload, context())["thumbnails"]
        return found

    return call


def test_each_size_is_written_and_fits(make: Make, photo: Path, folder: Path) -> None:
    made = make({"path": str(photo)}, sizes=[64, 320])
    assert [(one["width"], one["height"]) for one in made] == [(64, 48), (320, 240)]
    assert [one["path"] for one in made] == [f"{folder}/photo-64.webp", f"{folder}/photo-320.webp"]
    for one in made:
        path = Path(one["path"])
        assert path.stat().st_size == one["bytes"]
        assert path.stat().st_mode & 0o777 == 0o644
        with Image.open(path) as image:
            assert (image.format, image.size) == ("WEBP", (one["width"], one["height"]))
            assert image.getpixel((1, 1))[0] > 200
            assert image.getpixel((image.width - 2, 1))[2] > 200


@pytest.mark.parametrize(("name", "ending"), [("webp", ".webp"), ("jpeg", ".jpg"), ("png", ".png")])
def test_the_format_is_that_of_the_options(make: Make, photo: Path, name: str, ending: str) -> None:
    [made] = make({"path": str(photo), "name": "cover"}, format=name)
    assert made["path"].endswith(f"/cover-256{ending}")
    with Image.open(made["path"]) as image:
        assert image.format == name.upper()


def test_cover_is_a_square_of_the_middle(make: Make, photo: Path) -> None:
    [made] = make({"path": str(photo)}, fit="cover", sizes=[100], format="png")
    with Image.open(made["path"]) as image:
        assert image.size == (100, 100)
        assert image.getpixel((2, 50))[0] > 200
        assert image.getpixel((97, 50))[2] > 200


def test_a_small_picture_is_not_enlarged(make: Make, tmp_path: Path) -> None:
    small = tmp_path / "small.png"
    Image.new("RGB", (20, 10)).save(small)
    for fit, size in (("contain", (20, 10)), ("cover", (10, 10))):
        [made] = make({"path": str(small)}, fit=fit)
        assert (made["width"], made["height"]) == size


def test_a_picture_is_turned_upright_and_keeps_no_metadata(make: Make, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn by 90 degrees
    exif[0x010F] = "Camera"
    path = tmp_path / "turned.jpg"
    Image.new("RGB", (400, 200), "green").save(path, exif=exif)
    [made] = make({"path": str(path)}, format="jpeg", sizes=[100])
    assert (made["width"], made["height"]) == (50, 100)
    with Image.open(made["path"]) as image:
        assert not image.getexif()


def test_a_write_that_fails_leaves_the_old_file(
    make: Make, photo: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "photo-256.webp").write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):  # no Fail: another attempt may find room
        make({"path": str(photo)})
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("photo-256.webp", b"old")]


@pytest.mark.fault(78)
def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("1", (2000, 2000)).save(path)
    with pytest.raises(Fail, match="too large: 2000 × 2000 is more than 1000000 pixels"):
        make({"path": str(path)}, max_pixels=1_000_000)


def test_what_is_no_picture_fails_for_good(make: Make, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    for name in ("text.jpg", "gone.jpg", "."):
        with pytest.raises(Fail) as caught:
            make({"path": str(tmp_path / name)})
        assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.fault(78)
@pytest.mark.parametrize("name", ["../a", "a/b", "/etc/a", ".hidden", "..", "", " ", "a\0b", "a\nb", 5, "x" * 201])
def test_no_name_leads_out_of_the_folder(make: Make, photo: Path, folder: Path, name: Any) -> None:
    with pytest.raises(Fail, match="name"):
        make({"path": str(photo), "name": name})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sizes": []}, r"options\.sizes: must not be empty"),
        ({"sizes": [4]}, r"options\.sizes\.0: must be at least 8"),
        ({"sizes": 64}, r"options\.sizes: must be a list"),
        ({"format": "bmp"}, r"options\.format: must be 'webp', 'jpeg' or 'png'"),
        ({"quality": 101}, r"options\.quality: must be at most 100"),
        ({"size": 64}, r"options\.size: there is no such option; did you mean sizes\?"),
    ],
)
def test_options_are_checked_before_the_first_job(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HandlerError, match=problem):
        Handler(Thumbnailer, "handlers.thumbnail:Thumbnailer").check_options(options)


def test_without_a_folder_there_is_no_set_up(context: Callable[..., Any], tmp_path: Path) -> None:
    for options in ({}, {"folder": str(tmp_path / "gone")}):
        with pytest.raises(ValueError, match=r"options\.folder: "):
            Thumbnailer().setup(context(**options))
