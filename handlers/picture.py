"""A picture from a job's payload: read, limited, decoded, upright and RGB, or a permanent failure.

A payload is `{"path": "cat.jpg"}`; relative paths start at the worker's working directory. If the
pool's options allow URLs, `{"url": "https://…"}` is valid, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from handlers import download, files
from handlers.extras import require
from handlers.options import PictureOptions
from supervisor import Fail

if TYPE_CHECKING:
    from PIL.Image import Image

# Only raster formats whose decoders are Pillow's common ones; EPS, for example, would start Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

# Beyond this ratio of its sides a file is a strip, and scaling up its short side makes the long one huge.
MAX_ASPECT = 200


def load(payload: Mapping[str, Any], options: PictureOptions, *, enough: int | None = None) -> Image:
    """The payload's picture as an RGB Pillow image, turned upright by its EXIF orientation.

    With `enough` pixels for its short side, a JPEG may be decoded to a half, a quarter or an eighth of its size, which
    is several times faster.

    Raises Fail for everything that another attempt cannot fix: a payload without a usable path, a missing or
    unreadable file, a directory, a URL that the options do not allow, too many bytes or pixels, and data
    that is not a picture. Errors of the disk itself (EIO, ESTALE) pass through unchanged, because a retry
    may help.
    """
    location = _location(payload)
    if not _is_url(location):
        data = files.read(files.inside(location, options.root), options.max_bytes)
    elif options.allow_urls:
        data = download.fetch(location, options)
    else:
        raise Fail("URLs are refused: set options = { allow_urls = true } for this pool to allow them")
    return decode(data, options.max_pixels, enough=enough)


def decode(data: bytes, max_pixels: int, *, enough: int | None = None) -> Image:
    """The picture in `data`; raises Fail if there is none, or one with more than `max_pixels`."""
    if not data:
        raise Fail("not a picture: the file is empty")
    pillow = require("PIL.Image", extra="ml")
    try:
        # A warning about a damaged comment or EXIF block does not help the operator of a queue.
        with warnings.catch_warnings(action="ignore"):
            image = pillow.open(BytesIO(data), formats=FORMATS)
            _refuse_size(image.size, max_pixels)
            if enough is not None:
                image.draft(None, (enough, enough))
            image.load()
            # In place, and without copying RGB data: a large picture is in memory once, not three times.
            require("PIL.ImageOps", extra="ml").exif_transpose(image, in_place=True)
            return _rgb(image, pillow)
    except (Fail, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise Fail(f"too large: more than {max_pixels} pixels") from None
    except pillow.UnidentifiedImageError:
        raise Fail(f"not a picture in a format that is read here ({', '.join(FORMATS)})") from None
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more for damaged data.
        raise Fail(f"a damaged picture: {error}") from error


def _location(payload: Mapping[str, Any]) -> str:
    if not isinstance(payload, Mapping):
        raise Fail('the payload must be an object like {"path": "cat.jpg"}')
    if "url" in payload and "path" in payload:
        raise Fail("the payload has both a path and a url; give one of them")
    key = "url" if "url" in payload else "path"
    value = payload.get(key)
    if value is None:
        raise Fail('the payload has no path: give {"path": "cat.jpg"}')
    if not isinstance(value, str) or not value.strip():
        raise Fail(f"{key} must be a string that is not empty")
    if key == "url" and not _is_url(value):
        raise Fail("url must begin with http:// or https://")
    return value


def _is_url(location: str) -> bool:
    return location.strip().lower().startswith(("http://", "https://"))


def _refuse_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise Fail(f"too large: {width} × {height} is more than {max_pixels} pixels")
    if max(size) > MAX_ASPECT * min(size):
        raise Fail(f"not a usable picture: a strip of {width} × {height} pixels")


def _rgb(image: Any, pillow: Any) -> Image:
    """RGB as a viewer would show it: transparency over white, 16-bit grey scaled rather than clipped."""
    if image.mode.startswith("I"):
        high = image.getextrema()[1]
        if high > 255:
            scale = 255 / max(high, 65535)
            image = image.point(lambda value: value * scale + 0)
        return image.convert("L").convert("RGB")
    if image.has_transparency_data:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        image = pillow.new("RGB", layer.size, "white")
        image.paste(layer, mask=layer)  # needs one copy less than compositing two layers
    return image if image.mode == "RGB" else image.convert("RGB")
