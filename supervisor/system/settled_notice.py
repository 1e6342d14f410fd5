"""Workers tell the admin process that they have settled jobs: a request that waits for a result is answered at once.

The supervisor binds a datagram socket, which the admin process reads. Each worker has a socket of its own that sends
there: whatever a handler does to it concerns this worker alone. A message is empty: it only wakes, and if a handler has
put a file or a connection in the place of the worker's socket, sending nothing there changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_address = b""  # of the receiving socket; empty where there is none
_sending: socket.socket | None = None
_receiving: socket.socket | None = None
_flags = 0
_listening = False


def _datagram() -> socket.socket:
    import socket  # every queue loads this module, and only the processes of a supervisor have sockets of it

    global _flags
    _flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def hold() -> None:
    """In the supervisor, before its first fork. Raises OSError."""
    global _address, _receiving
    if _receiving is None:
        receiving = _datagram()
        receiving.setblocking(False)
        receiving.bind("")  # the kernel chooses a name, which is no file
        _address, _receiving = receiving.getsockname(), receiving


def address() -> bytes:
    """Where notices are sent to, for `take_over` in a program that this process becomes."""
    return _address


def take_over(address: bytes) -> None:
    global _address
    _address = address


def kept_to_listen() -> tuple[int, ...]:
    """The descriptors that the admin process keeps, so that it can call `listen`."""
    return () if _receiving is None else (_receiving.fileno(),)


def open_sender() -> None:
    """In a worker, before any handler runs: the socket is one of its own descriptors, which are checked."""
    global _sending
    if _address and _sending is None:
        sending = _datagram()
        try:
            sending.setblocking(False)
            sending.connect(_address)
        except OSError:
            sending.close()
            raise
        _sending = sending


def notify() -> None:
    """After a commit that has settled jobs. If nobody listens, the kernel keeps some messages and drops the others."""
    try:
        open_sender()
        if _sending is not None:
            _sending.send(b"", _flags)
    except OSError:
        return  # who waits looks again soon


def listen() -> None:
    """In the admin process: from now on, `notices` tells it of settled jobs."""
    global _listening
    _listening = _receiving is not None


def notices() -> socket.socket | None:
    """Readable when workers of this supervisor have settled jobs. None except in a process that listens."""
    return _receiving if _listening else None
