"""Messages between the supervisor and its children: JSON over a socket pair, with descriptors.

A message travels in one datagram or, when it is large, in several: the first byte of each tells whether a message
starts and whether it ends there. So messages arrive whole and in order. If a message cannot be sent or read, only
that message is lost. An end that leaves too much unread is closed: its reader is replaced and receives the current
state again.
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
from dataclasses import dataclass
from typing import Any

from supervisor.system import failpoints

Message = dict[str, Any]

LARGEST = 16 << 20  # bytes of one message
MOST_WAITING = 64 << 20  # bytes that may wait for a reader before the channel is closed
_PIECE = 64 * 1024 - 1  # bytes of a message in one datagram, less if the socket takes less
_SMALLEST_PIECE = 256
_MOST_DESCRIPTORS = 4
_MOST_AT_ONCE = 1024  # datagrams, and
_BYTES_AT_ONCE = 4 << 20  # bytes, read at once: a flood must not block this process
_LOOK = 0.1  # seconds: the kernel signals room for data, but not room for descriptors
_BEGINS, _ENDS = 1, 2
_MARKS = range(4)
_GONE = (errno.EPIPE, errno.ECONNRESET)
# Too many descriptors are in transit, or the kernel is short of memory: it may succeed later.
_LATER = (errno.EAGAIN, errno.EINTR, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True)
class _Outgoing:
    """A message being sent: `sent` is the number of bytes already sent."""

    data: bytes
    descriptors: tuple[int, ...]
    sent: int = 0


class Channel:
    """One end of a SEQPACKET socket pair. Sending never blocks: what does not fit now is queued."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._backlog: deque[_Outgoing] = deque()
        self._waiting = 0  # bytes in it
        self._piece = _PIECE
        self._whole: bytearray | None = None  # what has arrived of a message
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(first), cls(second)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` belong to the channel from now on: it closes them after they are sent, or cannot be.

        A message longer than LARGEST bytes is not sent; this is logged.
        """
        data = json.dumps(message).encode()
        if self.closed or len(data) > LARGEST:
            _close(descriptors)
            if not self.closed:
                _warn("message_too_large", bytes=len(data), keys=sorted(message)[:3])
            return
        self._backlog.append(_Outgoing(data, tuple(descriptors)))
        self._waiting += len(data)
        self.flush()
        if self._waiting > MOST_WAITING:
            _warn("channel_given_up", waiting_bytes=self._waiting, hint="the other end does not read")
            self._forget_backlog()
            self.closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the descriptor stays open until its owner closes the channel

    def flush(self) -> None:
        """Send what is queued, as much as the socket takes."""
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
                    # What the other end sent before can still be received, and then its end.
                    self._forget_backlog()
                    return
                if error.errno == errno.EMSGSIZE and self._piece > _SMALLEST_PIECE:
                    self._piece //= 2
                    continue
                _warn("message_not_sent", error=error.strerror, bytes=len(message.data))
                ended = True  # the receiver drops the part already sent when the next message starts
            if ended:
                self._backlog.popleft()
                self._waiting -= len(message.data)
                _close(message.descriptors)

    def drain(self, patience: float) -> None:
        """Before the end of a process: wait until everything is sent, for at most this many seconds."""
        until = time.monotonic() + patience
        while self._backlog and not self.closed and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            poll.poll(min(left, _LOOK) * 1000)
            self.flush()

    def _send_piece(self, message: _Outgoing) -> bool:
        """Send the next piece of a message. True: it was the last one. Raises OSError."""
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
        """The messages that have arrived; of a flood only the first. Sets `closed` when the other end is gone.

        If this process cannot open more descriptors, those of a message are missing. What cannot be read is
        logged and skipped.
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
                continue  # reported once, if the other end has not read everything; its own messages come after that
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
        """Like `receive`, for an end that expects no descriptors: any that arrive are closed."""
        found = []
        for message, descriptors in self.receive():
            _close(descriptors)
            found.append(message)
        return found

    def _put_together(self, data: bytes, *, cut: bool) -> Message | None:
        """The message that a datagram completes, if it does and can be read. What is not ours to understand is dropped,
        up to the beginning of the next message.
        """
        mark = data[0] if data else -1
        if cut or mark not in _MARKS:
            return self._garbled("it has an unknown format")
        if mark & _BEGINS:
            if self._whole is not None:
                self._garbled("its end is missing")
            self._whole = bytearray()
        if self._whole is None:
            return None
        self._whole += data[1:]
        if len(self._whole) > LARGEST:
            return self._garbled("it is too long")
        if not mark & _ENDS:
            return None
        try:
            message = json.loads(self._whole)
        except (ValueError, RecursionError) as error:
            return self._garbled(str(error))
        if not isinstance(message, dict):
            return self._garbled("it is not a JSON object")
        self._whole = None
        return message

    def _garbled(self, error: str) -> Message | None:
        _warn("message_garbled", bytes=len(self._whole or b""), error=error)
        self._whole = None
        return None

    def finish(self) -> None:
        """Send nothing more; the other end reads the end of the channel."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        self._forget_backlog()
        with contextlib.suppress(OSError):
            self._socket.close()


def _warn(event: str, **fields: Any) -> None:
    import structlog  # imported here: rarely needed, and slow to import

    structlog.get_logger(pid=os.getpid()).error(event, **fields)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
