"""The HTTP server: uvicorn's, obeying the supervisor instead of signals, asleep while nobody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from supervisor.admin.connection import Connection
from supervisor.system.channel import Channel
from supervisor.system.listening import BACKLOG
from supervisor.system.slot import Slot
from supervisor.telemetry import events

BEAT = 5.0  # seconds between two stamps
LOOK = 1.0  # seconds between two looks at how long the connections have been taking
FAREWELL = 1  # seconds for answers that are being made when we are told to leave
LARGEST_HEAD = 32 << 10  # bytes


class Server(uvicorn.Server):
    """Serves `app` on a socket that listens already, until the channel to the supervisor says or shows the end."""

    def __init__(self, app: ASGIApp, listening: socket.socket, channel: Channel, slot: Slot) -> None:
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
            date_header=False,  # the access middleware's: uvicorn's is as old as its last tick
            timeout_keep_alive=15,
            timeout_graceful_shutdown=FAREWELL,
            h11_max_incomplete_event_size=LARGEST_HEAD,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._channel = channel
        self._slot = slot
        self._told = asyncio.Event()
        _pass_on_log()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: a terminal's or a cgroup's mean the supervisor, and it tells us."""
        yield

    async def main_loop(self) -> None:
        """Beat, look after the connections, and otherwise sleep."""
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

    def _hear(self) -> None:
        told = any("leave" in message for message, _ in self._channel.receive())
        if told or self._channel.closed:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.should_exit = True
            self._told.set()


class _Events(logging.Handler):
    """What the libraries say, as events like our own; what strangers can have uvicorn say is for debugging alone."""

    def emit(self, record: logging.LogRecord) -> None:
        log = events(process="admin")
        tell = log.debug if record.name.startswith("uvicorn") else log.warning
        tell("http", detail=record.getMessage(), exc_info=record.exc_info)


def _pass_on_log() -> None:
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_Events()]
        logger.propagate = False
