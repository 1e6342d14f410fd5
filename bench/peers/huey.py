"""Huey on SQLite."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python


def _command(workers: int) -> list[list[str]]:
    consumer = ["-m", "huey.bin.huey_consumer", "huey_app.huey", "--quiet", "--no-periodic"]
    return [python(*consumer, "--worker-type", "process", "--workers", str(workers))]


PEER = Peer(
    name="huey",
    title="Huey",
    store="SQLite, no sync",
    settings="`fsync=False` but where a commit is synced, `results=False`; process workers, no periodic tasks",
    keeps="no: its row is deleted when it is taken",
    needs=(install.PYTHON,),
    versions=lambda: install.python_versions("huey"),
    program=python(str(PROGRAMS / "huey_app.py")),
    command=_command,
    size=30_000,
    can_sync=True,
)
