"""Workers tell the admin process that they have settled jobs: a request that waits for a result is answered at once.

The supervisor makes a pair of datagram sockets before its first fork. Workers have one end, the admin process the
other. A message is empty: it only wakes, and if a handler has put a file or a connection in the place of the worker's
end, sending nothing there changes nothing.
"""

from __future__ import annotations

import socket

_DATAGRAM = socket.AF_UNIX, socket.SOCK_DGRAM

_sending: socket.socket | None = None
_receiving: socket.socket | None = None
_listening = False


def hold() -> None:
    """In the supervisor, before its first fork. Raises OSError."""
    global _sending, _receiving
    if _sending is None:
        _sending, _receiving = socket.socketpair(*_DATAGRAM)
        _sending.setblocking(False)
        _receiving.setblocking(False)


def inherited() -> tuple[int, ...]:
    """The descriptors that a forked child keeps, so that it, or what it forks, can call `notify`."""
    return () if _sending is None else (_sending.fileno(),)


def kept_to_listen() -> tuple[int, ...]:
    """The descriptors that the admin process keeps, too, so that it can call `listen`."""
    return () if _receiving is None else (_receiving.fileno(),)


def take_over(descriptor: int) -> None:
    """In a program that a worker's process has become: `descriptor` is what was inherited; negative if nothing was."""
    global _sending
    if descriptor >= 0:
        _sending = socket.socket(*_DATAGRAM, fileno=descriptor)
        _sending.setblocking(False)
        _sending.set_inheritable(False)


def notify() -> None:
    """After a commit that has settled jobs. If nobody listens, the kernel keeps some messages and drops the others."""
    if _sending is not None:
        try:
            _sending.send(b"", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return


def listen() -> None:
    """In the admin process: from now on, `notices` tells it of settled jobs."""
    global _listening
    _listening = _receiving is not None


def notices() -> socket.socket | None:
    """Readable when workers of this supervisor have settled jobs. None except in a process that listens."""
    return _receiving if _listening else None
