"""The HTTP server: uvicorn, controlled by the supervisor instead of signals, with time limits for slow clients; idle
without requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.system.channel import Channel
from supervisor.system.slot import Slot
from supervisor.system.sockets import BACKLOG
from supervisor.telemetry import events

BEAT = 5.0  # seconds between two heartbeats
LOOK = 1.0  # seconds between two checks of the connections' time limits
FAREWELL = 1  # seconds to finish answers after a request to stop
LARGEST_HEAD = 32 << 10  # bytes
QUIET = 10.0  # seconds between two equal warnings
MOST = 600  # connections at once
UNSENT = 16 << 10  # bytes that the client has not taken, from which on no further answer is made for it
LAST = 0.1  # seconds for a request that was sent before the process was about to end
LIMITS = {
    "head": 10.0,  # seconds until a request's header is complete
    "body": 30.0,  # its body; of a file, each of its pieces
    "unread": 60.0,  # seconds until the client has read everything that was sent
    "linger": 2.0,  # seconds after the final answer to a client that is still sending
}
_AT_ONCE = struct.pack("ii", 1, 0)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 33\r\n"
    b'connection: close\r\nretry-after: 5\r\n\r\n{"error": "too many connections"}'
)


class Connection(H11Protocol):
    """The server checks it periodically and cuts it off if it takes too long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stage: tuple[str, object] = ("head", None)
        self._since = self.loop.time()
        self.lingering = False
        self._ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT)
        self.transport = cast("asyncio.Transport", Parting(transport, self))
        if len(self.connections) > MOST:
            transport.write(FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self.lingering:
            super().data_received(data)
            if self._ending and self.cycle is not None:
                self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The process is about to end. Who waits for no answer has a moment: a request that was sent before the client
        could know is still answered. If its connection were closed with unread data, the kernel would reset it.
        """
        self._ending = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST, self._end)
        else:
            self._end()

    def _end(self) -> None:
        """Close event streams, too, which would never end."""
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()

    def look(self, now: float) -> None:
        """Cut the connection off if it has been in one stage for too long; `now` is the loop's time."""
        stage = self._present_stage()
        if stage != self._stage:
            self._stage, self._since = stage, now
        elif now - self._since > LIMITS.get(stage[0], math.inf):
            # At once, without the data that the kernel still holds for it.
            self.connections.discard(self)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.transport.abort()

    def _present_stage(self) -> tuple[str, object]:
        """What the connection is waiting for, and in which request."""
        if self.lingering:
            return "linger", None
        if self.transport.get_write_buffer_size():
            return "unread", None
        if self.conn.their_state is h11.SEND_BODY:
            scope: Any = self.scope  # None before the first request, whatever its type says
            pieces = scope.get("state", {}).get("pieces", 0) if scope else 0
            return "body", (self.cycle, pieces)  # of a file that were stored: it advances
        if self.conn.their_state is h11.IDLE:
            # Between two requests uvicorn's own timer runs, until something comes.
            return "head" if self.timeout_keep_alive_task is None else "idle", self.cycle
        return "answer", self.cycle


class Parting:
    """A transport that sends what is written together, such as head and body of an answer, at once, and that delivers
    the final answer to a client that is still sending.

    If it were closed with unread data, the kernel would reset the connection, and the answer could be lost. So it is
    half closed, and what still arrives is discarded for a short time.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._written.append(data)
        if len(self._written) == 1:
            self._connection.loop.call_soon(self._send)

    def _send(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(b"".join(written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._connection.lingering or self._transport.is_closing()

    def close(self) -> None:
        self._send()
        if self._connection.conn.their_state is not h11.SEND_BODY or self._transport.is_closing():
            self._transport.close()
        elif not self._connection.lingering:
            self._connection.lingering = True
            self._connection.flow.resume_reading()
            self._transport.write_eof()


class Server(uvicorn.Server):
    """Serves `app` on a listening socket until the supervisor requests the end or its channel closes: then `leave` is
    called with the seconds that are left to finish answers, to end what would take longer.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, channel: Channel, slot: Slot, *, leave: Callable[[float], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,  # the access middleware sets it: uvicorn's may be a second old
            timeout_keep_alive=15,
            timeout_graceful_shutdown=FAREWELL,
            h11_max_incomplete_event_size=LARGEST_HEAD,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._channel = channel
        self._slot = slot
        self._leave = leave
        self._ends = asyncio.Event()
        for name in ("uvicorn", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers = [_Events()]
            logger.propagate = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: those from a terminal or cgroup are for the supervisor, which then stops this process."""
        yield

    async def main_loop(self) -> None:
        """Send heartbeats and check the connections; otherwise sleep."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._hear)
        self._slot.page.pid = os.getpid()
        self._slot.beat()
        self._channel.send({"ready": True})
        while not self.should_exit:
            self._slot.beat()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), LOOK if self.server_state.connections else BEAT)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Connections that are not accepted yet wait for the next process. Those that were have three turns of the loop
        to become known to the server: closed before, it would drop them.
        """
        loop = asyncio.get_running_loop()
        for serving in self.servers:
            for listening in serving.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _hear(self) -> None:
        times = [message["leave"] for message, _ in self._channel.receive() if "leave" in message]
        if self._channel.closed:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            times.append(0.0)
        if times:
            seconds = min(times)
            self.config.timeout_graceful_shutdown = FAREWELL + round(seconds)
            self.should_exit = True
            self._leave(seconds)
            self._ends.set()


class _Events(logging.Handler):
    """Logs the libraries' records as events. Uvicorn's are debug events, because clients can cause them. Without a free
    descriptor, asyncio reports hundreds of times a second that it cannot accept: that is logged once in a while.
    """

    _last, _last_at = "", -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        detail, exc_info = record.getMessage(), record.exc_info
        if exc_info and isinstance(exc_info[1], OSError):
            detail, exc_info = f"{detail.partition(chr(10))[0]}: {exc_info[1].strerror}", None
        if detail != self._last or time.monotonic() >= self._last_at + QUIET:
            self._last, self._last_at = detail, time.monotonic()
            log = events(process="admin")
            tell = log.debug if record.name.startswith("uvicorn") else log.warning
            tell("http", detail=detail, exc_info=exc_info)
