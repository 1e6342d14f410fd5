"""The admin process from its fork to its end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket

from supervisor.admin.app import make_app
from supervisor.admin.desk import Desk
from supervisor.admin.gate import Gate
from supervisor.admin.keys import keys_of
from supervisor.admin.office import Office
from supervisor.admin.server import Server
from supervisor.admin.watch import Watch
from supervisor.config.settings import Settings
from supervisor.store.base import Engine
from supervisor.system import signals
from supervisor.system.channel import Channel
from supervisor.system.slot import Slot

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def become(settings: Settings, engine: Engine, slot: Slot, channel: Channel, listening: socket.socket) -> int:
    """Serve until the supervisor is gone or says so. The exit code."""
    signals.Inbox(obeyed=(), ignored=IGNORED)
    signals.unblock_all()
    assert settings.admin is not None
    try:
        keys = keys_of(settings.admin)
    except (OSError, ValueError) as error:
        channel.send({"problem": str(error)})
        return 1
    desk = Desk(engine)
    office = Office(settings.admin, keys, desk, Watch(desk), tuple(settings.pools))
    server = Server(Gate(make_app(office), keys, settings.admin), listening, channel, slot)
    gc.collect()
    gc.freeze()  # what has just been imported stays
    # No runner: it would wait for threads that hang in a question; this process leaves without them.
    loop = asyncio.new_event_loop()
    loop.run_until_complete(server.serve(sockets=[listening]))
    desk.close()
    loop.close()
    return 0
