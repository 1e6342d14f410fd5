"""What a process may do and where it is, as far as it can change that permanently. Applies to the main thread."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from os import stat, strerror

_PR_GET_SECCOMP = 21
_PR_GET_NO_NEW_PRIVS = 39
_OOM_SCORE = "/proc/self/oom_score_adj"
_CAPABILITY_VERSION = 0x20080522
_NAMESPACES = ("mnt", "net", "pid_for_children", "user", "uts", "ipc", "cgroup")

_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _capget, _capset = _libc.prctl, _libc.capget, _libc.capset
_header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
_sets = (ctypes.c_uint32 * 6)()


def capabilities() -> bytes:
    """The effective, permitted and inheritable sets, as the kernel writes them."""
    _header[0] = _CAPABILITY_VERSION
    return bytes(_sets) if _capget(_header, _sets) == 0 else b""


def set_capabilities(sets: bytes) -> None:
    """Raises OSError if one of them has been given up."""
    if _capset(_header, (ctypes.c_uint32 * 6).from_buffer_copy(sets)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, strerror(code))


def restrictions() -> tuple[int, int]:
    """(whether programs cannot gain privileges, the seccomp mode): neither can be undone."""
    return _prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), _prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)


def place() -> list[tuple[int, int] | None]:
    """The identities of its root folder and its namespaces."""
    return [_identity("/"), *(_identity(f"/proc/self/ns/{name}") for name in _NAMESPACES)]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = stat(path)  # noqa: PTH116 - Path.stat may be replaced
    except OSError:  # not supported, or /proc is not available any more
        return None
    return found.st_dev, found.st_ino


def oom_score() -> int | None:
    """How readily the kernel kills this process when memory is short; None if unknown."""
    with suppress(OSError, ValueError):
        descriptor = os.open(_OOM_SCORE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 16))
        finally:
            os.close(descriptor)
    return None


def set_oom_score(score: int) -> None:
    """Raises OSError: only a privileged process may lower it."""
    descriptor = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(score).encode())
    finally:
        os.close(descriptor)
