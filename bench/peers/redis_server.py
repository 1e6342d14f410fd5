"""A Redis server of the benchmark's own: on the loopback interface, on a free port, in memory only."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from bench import processes
from bench.peers import install

_PATIENCE = 10.0


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The URL of an empty server, which ends with the block."""
    command = install.redis_command()
    assert command is not None, "a peer that needs Redis is opened only where there is one"
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    log = folder / "redis.log"
    with processes.running([*command, *options], env=os.environ, log=log):
        _await_answer(port, log)
        yield f"redis://127.0.0.1:{port}/0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.01)
    raise processes.ProgramFailed(f"Redis does not answer{processes.tail(log)}")
