"""The HTTP server: uvicorn, controlled by the supervisor instead of signals; idle without requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from supervisor.admin.connection import Connection
from supervisor.system.channel import Channel
from supervisor.system.slot import Slot
from supervisor.system.sockets import BACKLOG
from supervisor.telemetry import events

BEAT = 5.0  # seconds between two heartbeats
LOOK = 1.0  # seconds between two checks of the connections' time limits
FAREWELL = 1  # seconds to finish answers after a request to stop
LARGEST_HEAD = 32 << 10  # bytes
QUIET = 10.0  # seconds between two equal warnings


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
        self._told = asyncio.Event()
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
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._hear)
        self._slot.occupy(os.getpid())
        self._channel.send({"ready": True})
        while not self.should_exit:
            self._slot.beat()
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), LOOK if self.server_state.connections else BEAT)

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
        told = [message["leave"] for message, _ in self._channel.receive() if "leave" in message]
        if self._channel.closed:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            told.append(0.0)
        if told:
            seconds = min(told)
            self.config.timeout_graceful_shutdown = FAREWELL + round(seconds)
            self.should_exit = True
            self._leave(seconds)
            self._told.set()


class _Events(logging.Handler):
    """Logs the libraries' records as events. Uvicorn's are debug events, because clients can cause them. Without a free
    descriptor, asyncio reports hundreds of times a second that it cannot accept: that is told once in a while.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told, self._told_at = "", -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        detail, exc_info = record.getMessage(), record.exc_info
        if exc_info and isinstance(exc_info[1], OSError):
            detail, exc_info = f"{detail.partition(chr(10))[0]}: {exc_info[1].strerror}", None
        if detail != self._told or time.monotonic() >= self._told_at + QUIET:
            self._told, self._told_at = detail, time.monotonic()
            log = events(process="admin")
            tell = log.debug if record.name.startswith("uvicorn") else log.warning
            tell("http", detail=detail, exc_info=exc_info)
