"""Surroundings that a test may spoil: mounts and cgroups of its own. Nothing outside them is touched.

A test that cannot have them says what is missing and is skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.site_under_test import HANDLERS, Site, wait_for

GATED = (
    HANDLERS
    + """
def gated(payload, ctx):
    '''Runs until the file payload["gate"] is there, and tells what time it then was.'''
    record("start", ctx)
    while not os.path.exists(payload.get("gate", "/")):
        time.sleep(0.005)
    record("end", ctx)
    return time.time()
"""
)

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


@contextlib.contextmanager
def private_mounts() -> Iterator[None]:
    """A mount namespace for this thread and the processes that it starts; what is mounted in it ends with it."""
    home, folder = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY), Path.cwd()
    try:
        try:
            _call("unshare", _CLONE_NEWNS)
        except OSError as error:
            pytest.skip(f"a mount namespace of one's own is needed (root has one): {error}")
        try:
            mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
            yield
        finally:
            # Refused while a thread that was begun meanwhile, such as that of `Queue.wait`, is about to end.
            wait_for(lambda: _libc.setns(home, _CLONE_NEWNS) == 0, "the last thread to end")
            os.chdir(folder)
    finally:
        os.close(home)


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    encoded = None if kind is None else kind.encode()
    _call("mount", source.encode(), os.fsencode(target), encoded, flags, options.encode())


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size on a folder, seen by this thread and its processes alone."""
    folder.mkdir()
    with private_mounts():
        mount("none", folder, "tmpfs", options=f"size={size}")
        yield folder


def command(site: Site, *words: str, code: int = 0) -> str:
    """All that a command writes on a site's configuration."""
    ended = site.command(*words, code=code)
    return ended.stdout + ended.stderr


def stays(condition: Callable[[], bool], seconds: float) -> None:
    """What does not happen can only be seen by looking for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        time.sleep(0.02)


def fill(folder: Path) -> Path:
    """Take all the room that is left; delete the file that is returned to give it back."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for block in (bytes(1 << 16), bytes(1 << 12), b"\0"):
            with contextlib.suppress(OSError):
                while file.write(block):
                    pass
    return filler
