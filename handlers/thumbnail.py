"""Thumbnails of a picture, written to a folder.

    [pools.thumbnail]
    handler = "handlers.thumbnail:Thumbnailer"
    options = { folder = "/srv/thumbnails", sizes = [128, 512] }

A file appears whole or not at all, and a job that runs twice writes the same files again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handlers import extras, picture
from handlers.extras import require
from handlers.options import OptionsError, ThumbnailOptions, checked_by, folder, read
from supervisor import Fail

if TYPE_CHECKING:
    from PIL.Image import Image

    from supervisor import Context

_ENDINGS = {"webp": ".webp", "jpeg": ".jpg", "png": ".png"}
_LONGEST_NAME = 200  # bytes; a file system allows 255, and the temporary name is longer


def _needs(options: ThumbnailOptions) -> None:
    if not options.folder:
        raise OptionsError([(("folder",), "name the folder for thumbnails")])
    folder("folder", Path(options.folder))
    extras.check("PIL", extra="thumbnail")


@checked_by(ThumbnailOptions, _needs)
class Thumbnailer:
    """`{"path": "cat.jpg"}` → `{"thumbnails": [{"path", "width", "height", "bytes"}]}`.

    The files are `folder`/`name`-`size`.webp; `name` is the payload's, or the name of the picture without its ending.
    Pictures are turned upright and never enlarged. The file has no metadata.
    """

    def __init__(self) -> None:
        self._options = ThumbnailOptions()

    def setup(self, ctx: Context) -> None:
        self._options = options = read(ThumbnailOptions, ctx.options)
        _needs(options)

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        options = self._options
        # Twice the largest size is enough to scale down well.
        image = picture.load(payload, options, enough=2 * max(options.sizes))
        name = _name(payload)
        return {"thumbnails": [self._write(image, name, size) for size in options.sizes]}

    def _write(self, image: Image, name: str, size: int) -> dict[str, Any]:
        small = _scaled(image, size, self._options.fit)
        target = Path(self._options.folder) / f"{name}-{size}{_ENDINGS[self._options.format]}"
        written = _replace(target, lambda file: small.save(file, self._options.format, quality=self._options.quality))
        return {"path": str(target), "width": small.width, "height": small.height, "bytes": written}


def _scaled(image: Image, size: int, fit: str) -> Image:
    operations, pillow = require("PIL.ImageOps", extra="thumbnail"), require("PIL.Image", extra="thumbnail")
    if fit == "cover":
        side = min(size, *image.size)
        made: Image = operations.fit(image, (side, side), method=pillow.Resampling.LANCZOS)
    else:
        made = image.copy()
        made.thumbnail((size, size), resample=pillow.Resampling.LANCZOS)
    made.info.clear()  # comments, colour profiles and positions stay in the original
    return made


def _name(payload: dict[str, Any]) -> str:
    """A file name, without its ending. Raises Fail for one that would lead out of the folder."""
    name = payload.get("name")
    if name is None:
        place = str(payload.get("path") or payload.get("url")).partition("?")[0]
        name = Path(place).stem
    if not isinstance(name, str) or not name.isprintable() or "/" in name or name.startswith(".") or not name.strip():
        raise Fail(f"not a name for a file: {name!r}; it must not be hidden or contain a slash")
    if len(name.encode("utf-8", "replace")) > _LONGEST_NAME:
        raise Fail(f"the name is longer than {_LONGEST_NAME} bytes")
    return name


def _replace(target: Path, write: Callable[[Any], object]) -> int:
    """Write a file whole: beside its place first, then renamed into it. Returns its size in bytes."""
    descriptor, beside = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp lets only the owner read it
            os.fsync(file.fileno())  # a rename alone could leave an empty file after a power failure
            size = os.fstat(file.fileno()).st_size
        os.replace(beside, target)  # noqa: PTH105 - one text, one path
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return size
