"""Messages between the supervisor and its children: JSON over a socket pair, descriptors beside it.

A message travels in one datagram or, when it is large, in several: the first byte of each says whether a message
begins and whether it ends there. So what is sent arrives whole and in order. A message that cannot be sent or
read costs itself alone. An end that lets too much wait is given up: its reader is replaced, and told everything
that is still true.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from supervisor.system import failpoints

Message = dict[str, Any]

LARGEST = 16 << 20  # bytes of one message
MOST_WAITING = 64 << 20  # bytes that wait for a reader, before it is given up
_PIECE = 64 * 1024 - 1  # bytes of a message in one datagram, less where the socket takes less
_SMALLEST_PIECE = 256
_MOST_DESCRIPTORS = 4
_MOST_AT_ONCE = 1024  # datagrams, and
_BYTES_AT_ONCE = 4 << 20  # bytes, that are read in one go: whoever floods us must not keep us
_LOOK = 0.1  # seconds: the kernel tells of room for data, not of room for descriptors
_BEGINS, _ENDS = 1, 2
_MARKS = range(4)
_GONE = (errno.EPIPE, errno.ECONNRESET)
# Too many descriptors are on their way, or the kernel is short of memory: later it may go.
_LATER = (errno.EAGAIN, errno.EINTR, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)


class _Outgoing:
    """A message on its way: `sent` bytes of it have gone."""

    __slots__ = ("data", "descriptors", "sent")

    def __init__(self, data: bytes, descriptors: Sequence[int]) -> None:
        self.data = data
        self.descriptors = tuple(descriptors)
        self.sent = 0


class Channel:
    """One end of a SEQPACKET socket pair. Sending never blocks: what does not fit now waits its turn."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._backlog: deque[_Outgoing] = deque()
        self._waiting = 0  # bytes in it
        self._piece = _PIECE
        self._parts: list[bytes] | None = None  # of a message of which more is to come
        self._size = 0  # bytes of these
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(first), cls(second)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are the channel's from now on: it closes them when they have gone over, or cannot.

        A message of more than LARGEST bytes is not sent, which is logged.
        """
        data = json.dumps(message).encode()
        if self.closed or len(data) > LARGEST:
            _close(descriptors)
            if not self.closed:
                _complain("message_too_large", bytes=len(data), keys=sorted(message)[:3])
            return
        self._backlog.append(_Outgoing(data, descriptors))
        self._waiting += len(data)
        self.flush()
        if self._waiting > MOST_WAITING:
            _complain("channel_given_up", waiting_bytes=self._waiting, hint="the other end does not read")
            self._forget_backlog()
            self.closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the descriptor stays until whoever watches it closes us

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._backlog and not self.closed:
            message = self._backlog[0]
            try:
                if not message.sent:
                    failpoints.reach_sending(message.data)
                ended = self._send_piece(message)
            except OSError as error:
                if error.errno in _LATER:
                    return
                if error.errno in _GONE:
                    # What it said before is still to be received, and then its end.
                    self._forget_backlog()
                    return
                if error.errno == errno.EMSGSIZE and self._piece > _SMALLEST_PIECE:
                    self._piece //= 2
                    continue
                _complain("message_not_sent", error=error.strerror, bytes=len(message.data))
                ended = True  # what has gone of it is dropped where the next one begins
            if ended:
                self._backlog.popleft()
                self._waiting -= len(message.data)
                _close(message.descriptors)

    def drain(self, patience: float) -> None:
        """Before the end of a process: wait until all has gone over, for at most so many seconds."""
        until = time.monotonic() + patience
        while self._backlog and not self.closed and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            poll.poll(min(left, _LOOK) * 1000)
            self.flush()

    def _send_piece(self, message: _Outgoing) -> bool:
        """Send the next piece of a message. True: that was the last one. Raises OSError."""
        end = message.sent + self._piece
        ends = end >= len(message.data)
        mark = (0 if message.sent else _BEGINS) | (_ENDS if ends else 0)
        data = bytes((mark,)) + message.data[message.sent : end]
        if ends and message.descriptors:
            socket.send_fds(self._socket, [data], list(message.descriptors))
        else:
            self._socket.send(data)
        message.sent = end
        return ends

    def _forget_backlog(self) -> None:
        for message in self._backlog:
            _close(message.descriptors)
        self._backlog.clear()
        self._waiting = 0

    def receive(self) -> list[tuple[Message, list[int]]]:
        """The messages that have arrived, of a flood only the first. Sets `closed` when the other end is gone.

        Where this process may open no more descriptors, those of a message are missing. What cannot be read is
        logged and passed over.
        """
        messages: list[tuple[Message, list[int]]] = []
        size = 0
        for _ in range(_MOST_AT_ONCE):
            if self.closed or size > _BYTES_AT_ONCE:
                break
            try:
                failpoints.reach_receiving(self._socket)
                data, received, flags, _ = socket.recv_fds(self._socket, _PIECE + 1, _MOST_DESCRIPTORS)
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionResetError:
                continue  # told once, if the other end has not read all; what it said is behind that
            except OSError as error:
                self.closed = error.errno not in _LATER
                break
            size += len(data)
            descriptors = list(received)
            if not data and not descriptors:
                self.closed = True
                break
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            message = self._put_together(data, cut=bool(flags & socket.MSG_TRUNC))
            if message is None:
                _close(descriptors)
            else:
                messages.append((message, descriptors))
        return messages

    def hear(self) -> list[Message]:
        """As `receive`, for an end that is sent no descriptors: any that come all the same are closed."""
        found = []
        for message, descriptors in self.receive():
            _close(descriptors)
            found.append(message)
        return found

    def _put_together(self, data: bytes, *, cut: bool) -> Message | None:
        """The message that a datagram brings to its end, if it does and can be read."""
        mark = data[0] if data else -1
        if cut or mark not in _MARKS:
            self._parts = None
            _complain("message_garbled", bytes=len(data), error="it is not one of ours")
            return None
        if mark & _BEGINS:
            if self._parts is not None:
                _complain("message_garbled", bytes=self._size, error="its end is missing")
            self._parts, self._size = [], 0
        if self._parts is None:
            return None  # the rest of one that has been dropped
        self._parts.append(data[1:])
        self._size += len(data) - 1
        if self._size > LARGEST:
            self._parts = None
            _complain("message_garbled", bytes=self._size, error="it does not end")
            return None
        if not mark & _ENDS:
            return None
        whole, self._parts = b"".join(self._parts), None
        return _read(whole)

    def finish(self) -> None:
        """Say nothing more; the other end reads the end of the channel."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        self._forget_backlog()
        with contextlib.suppress(OSError):
            self._socket.close()


def _read(data: bytes) -> Message | None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        _complain("message_garbled", bytes=len(data), error=str(error))
        return None
    if not isinstance(message, dict):
        _complain("message_garbled", bytes=len(data), error="it is no JSON object")
        return None
    return message


def _complain(event: str, **fields: Any) -> None:
    import structlog  # rarely needed, and takes its time

    structlog.get_logger(pid=os.getpid()).error(event, **fields)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
