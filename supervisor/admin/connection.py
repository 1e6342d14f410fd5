"""One connection: uvicorn's, which waits for slow clients no longer than is decent."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.telemetry import events

MOST = 500  # connections at once; more are told to come again
LIMITS = {
    "head": 10.0,  # seconds until a request's head is there
    "body": 30.0,  # its body
    "unread": 60.0,  # without a moment in which all that we have said was taken
    "linger": 2.0,  # after a last word to somebody who is still talking
}
_AT_ONCE = struct.pack("ii", 1, 0)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 33\r\n"
    b'connection: close\r\nretry-after: 5\r\n\r\n{"error": "too many connections"}'
)


class Connection(H11Protocol):
    """Looked at by the server every now and then; one that is overdue is cut off."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stage: tuple[str, object] = ("head", None)
        self._since = self.loop.time()
        self.lingering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", Parting(transport, self))
        if len(self.connections) > MOST:
            transport.write(FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self.lingering:
            super().data_received(data)

    def shutdown(self) -> None:
        """The process is about to end: a stream that has begun has no end to wait for."""
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()

    def look(self, now: float) -> None:
        """Cut the connection off if it has been in one stage for too long; `now` is the loop's time."""
        stage = self._present_stage()
        if stage != self._stage:
            self._stage, self._since = stage, now
        elif now - self._since > LIMITS.get(stage[0], math.inf):
            events(process="admin").debug("connection_cut", stage=stage[0], client=self.client)
            # With all that the kernel still holds for it, which nobody will come for.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.transport.abort()

    def _present_stage(self) -> tuple[str, object]:
        """What it is waiting for, and in which request."""
        if self.lingering:
            return "linger", None
        if self.transport.get_write_buffer_size():
            return "unread", None
        if self.conn.their_state is h11.SEND_BODY:
            return "body", self.cycle
        if self.conn.their_state is h11.IDLE:
            # Between two requests uvicorn's own timer runs, until something comes.
            return "head" if self.timeout_keep_alive_task is None else "idle", self.cycle
        return "answer", self.cycle


class Parting:
    """A transport that lets a client that is still sending hear the last word.

    Closed at once, with something of theirs unread, the kernel would reset the connection, and what we said could
    be lost: so it is half closed, and what comes is thrown away for a moment.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._connection.lingering or self._transport.is_closing()

    def close(self) -> None:
        if self._connection.conn.their_state is not h11.SEND_BODY or self._transport.is_closing():
            self._transport.close()
        elif not self._connection.lingering:
            self._connection.lingering = True
            self._connection.flow.resume_reading()
            self._transport.write_eof()
