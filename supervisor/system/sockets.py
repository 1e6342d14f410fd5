"""Sockets: those that listen, the connections that a process holds, and systemd's for status."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

BACKLOG = 512  # connections that wait while nobody accepts them
UNREAD = 128 << 10  # bytes that the kernel buffers for a connection that does not read; it may double them
_MODE = 0o660


class Listening:
    """One listening socket, on an address or at a path. Raises OSError if that is not possible."""

    def __init__(self, address: tuple[str, int] | None, path: Path | None) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        if path is not None:
            self.socket = self._at(path)
        else:
            assert address is not None
            self.socket = _on(address)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)  # for every connection; default: megabytes

    @property
    def url(self) -> str:
        """Where it listens, for people: `http://127.0.0.1:8787`, or `unix:/path`."""
        if self._path is not None:
            return f"unix:{self._path}"
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        """Stop listening; a socket's file is removed, unless another process has replaced it."""
        self.socket.close()
        if self._path is not None and self._file == _identity(self._path):
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _at(self, path: Path) -> socket.socket:
        """Bind to a path. A socket without a listener was left behind by a killed process."""
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # If two processes find the same leftover, neither may remove the other's new socket.
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
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may still linger there
        # Every connection inherits it; otherwise a body sent after its head waits 40 ms for an acknowledgement.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _is_left_over(path: Path) -> bool:
    """Whether there is a socket without a listener. Any other file is never ours to remove."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.setblocking(False)  # a full backlog means that it is in use, too
        return visitor.connect_ex(str(path)) == errno.ECONNREFUSED


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def local_ends(pid: int) -> set[tuple[str, int]]:
    """(address, port) of this side of each TCP connection that a process or a descendant of it holds open."""
    import psutil  # rarely needed

    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found |= {(end.laddr.ip.removeprefix("::ffff:"), end.laddr.port) for end in one.net_connections("tcp")}
    return found


class Notifier:
    """Sends to $NOTIFY_SOCKET; does nothing if it is not set."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half the time allowed, as sd_watchdog_enabled(3) recommends; None without a watchdog.
        self.interval = int(microseconds) / 2e6 if microseconds.isdigit() and meant else None
        self._next = 0.0

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError:
            return  # systemd is restarting, or no descriptor is available: no reason to stop working

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self, now: float) -> None:
        """Notify the watchdog if it is time. `now` is monotonic seconds."""
        if self.interval is not None and now >= self._next:
            self._next = now + self.interval
            self._send("WATCHDOG=1")
