"""Converted models, kept between runs in the user's cache directory.

A model is one file whose name ends in the SHA-256 of its content. So it appears whole or not at all (a
temporary file, then a rename), two processes that convert at once cannot disturb each other, and damage
is detected when the file is used: a file that does not match its name is removed and created again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def folder() -> Path:
    """`$XDG_CACHE_HOME/job-supervisor` or `~/.cache/job-supervisor`, created if it is missing.

    As the XDG Base Directory Specification requires, a relative `$XDG_CACHE_HOME` is ignored. Raises
    RuntimeError, which says what to do, if neither can be created.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        path = (base if base.is_absolute() else Path.home() / ".cache") / "job-supervisor"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"no cache directory for the converted model ({error}): "
            "set XDG_CACHE_HOME to a directory that the worker may write"
        ) from None
    return path


def find(stem: str) -> bytes | None:
    """The content of an intact cached model called `stem`, or None."""
    for path in sorted(folder().glob(f"{stem}-*.onnx")):
        data = path.read_bytes()
        if path.name == _name(stem, data):
            return data
        path.unlink(missing_ok=True)
    return None


def keep(stem: str, data: bytes) -> Path:
    """Write a model into the cache. Raises RuntimeError, which says what to do, if that is not possible."""
    target = folder() / _name(stem, data)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{stem}-", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                temporary.rename(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise RuntimeError(
            f"the converted model cannot be written to {target.parent} ({error.strerror}): "
            "set XDG_CACHE_HOME to a directory with room that the worker may write"
        ) from None
    return target


@contextlib.contextmanager
def lock(stem: str) -> Iterator[None]:
    """Held while a model is converted, so that ten workers that start at once convert it once.

    It only saves work: the cache is correct without it. The kernel releases it when its holder dies.
    """
    with (folder() / f".{stem}.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _name(stem: str, data: bytes) -> str:
    return f"{stem}-{hashlib.sha256(data).hexdigest()}.onnx"
