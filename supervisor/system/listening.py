"""A listening socket that outlives the process that serves it: while that is replaced, connections wait."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

BACKLOG = 512  # connections that wait while nobody accepts them
UNREAD = 128 << 10  # bytes that the kernel keeps of what a connection's other end does not read; it may double them
_MODE = 0o660


class Listening:
    """One socket that listens, on an address or at a path. Raises OSError where it cannot be had."""

    def __init__(self, address: tuple[str, int] | None, path: Path | None) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        if path is not None:
            self.socket = self._at(path)
        else:
            assert address is not None
            self.socket = _on(address)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)  # of every connection; else some megabytes

    @property
    def url(self) -> str:
        """Where it listens, for people: `http://127.0.0.1:8787`, or `unix:/path`."""
        if self._path is not None:
            return f"unix:{self._path}"
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        """Nobody is listened to any more; a socket's file goes, unless it is somebody else's by now."""
        self.socket.close()
        if self._path is not None and self._file == _identity(self._path):
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _at(self, path: Path) -> socket.socket:
        """Bind to a path. A socket that nobody listens on was left behind by somebody who was killed."""
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Two who find the same leftover must not take each other's new one for it.
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_left_over(path):
                path.unlink()
            made = socket.socket(socket.AF_UNIX)
            try:
                before = os.umask(0o777 & ~_MODE)
                try:
                    made.bind(str(path))
                finally:
                    os.umask(before)
                made.listen(BACKLOG)
            except OSError:
                made.close()
                raise
        finally:
            os.close(folder)
        self._file = _identity(path)
        return made


def _on(address: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has ended may still linger there
        # Every connection inherits it; else a body that follows its head waits 40 ms for an acknowledgement.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _is_left_over(path: Path) -> bool:
    """Whether a socket lies there on which nobody listens. Any other file is never ours to remove."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.setblocking(False)  # a full backlog is somebody's, too
        return visitor.connect_ex(str(path)) == errno.ECONNREFUSED


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
