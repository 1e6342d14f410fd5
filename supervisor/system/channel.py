"""Messages between the supervisor and its children: JSON over a socket pair, descriptors beside it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from supervisor.system import failpoints

Message = dict[str, Any]

_LARGEST = 128 * 1024
_MOST_DESCRIPTORS = 4


class Channel:
    """One end of a SEQPACKET socket pair. Sending never blocks: what does not fit now waits its turn."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._backlog: deque[tuple[bytes, Sequence[int]]] = deque()
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(first), cls(second)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are the channel's from now on: it closes them when they have gone over."""
        self._backlog.append((json.dumps(message).encode(), descriptors))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._backlog and not self.closed:
            data, descriptors = self._backlog[0]
            try:
                failpoints.reach_sending(data)
                socket.send_fds(self._socket, [data], list(descriptors))
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    return  # too many descriptors are on their way: they can follow when some have arrived
                # The other end is gone. What it said before is still to be received, and then its end.
                for _, lost in self._backlog:
                    _close(lost)
                self._backlog.clear()
                return
            self._backlog.popleft()
            _close(descriptors)

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Every message that has arrived. Sets `closed` when the other end is gone.

        Where this process may open no more descriptors, those of a message are missing.
        """
        messages: list[tuple[Message, list[int]]] = []
        while not self.closed:
            try:
                failpoints.reach_receiving(self._socket)
                data, descriptors, _, _ = socket.recv_fds(self._socket, _LARGEST, _MOST_DESCRIPTORS)
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionResetError:
                continue  # told once, if the other end has not read all; what it said is behind that
            except OSError:
                self.closed = True
                break
            if not data:
                self.closed = True
                break
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            messages.append((json.loads(data), list(descriptors)))
        return messages

    def finish(self) -> None:
        """Say nothing more; the other end reads the end of the channel."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
