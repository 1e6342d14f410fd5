"""Dramatiq on Redis."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python


def _command(workers: int) -> list[list[str]]:
    return [python("-m", "dramatiq", "dramatiq_app", "--processes", str(workers), "--threads", "1")]


PEER = Peer(
    name="dramatiq",
    title="Dramatiq",
    store="Redis",
    settings="no results; processes with one thread each, one for each worker",
    keeps="yes: Dramatiq exits, and runs it again some time after its restart",
    needs=(install.PYTHON, install.REDIS),
    versions=lambda: install.python_versions("dramatiq"),
    program=python(str(PROGRAMS / "dramatiq_app.py")),
    command=_command,
    size=1_200,
    worker_counts=(2, 8),  # two cases are enough of the slow ones
)
