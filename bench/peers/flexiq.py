"""FlexiQ, which was taskito, on SQLite."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python

_PROGRAM = python(str(PROGRAMS / "flexiq_app.py"), place=install.WHEELS_PLACE)

PEER = Peer(
    name="flexiq",
    title="FlexiQ",
    store="SQLite",
    settings=(
        "formerly taskito: a process with a thread for each worker, as in its own benchmark, not `prefork`; "
        "`scheduler_poll_interval_ms=1`, `scheduler_batch_size=64`; results that are ready together are committed "
        "together"
    ),
    keeps="yes: 30 seconds later, in another process or after a restart",
    needs=(install.WHEELS,),
    versions=lambda: install.python_versions("flexiq", place=install.WHEELS_PLACE),
    program=_PROGRAM,
    command=lambda workers: [[*_PROGRAM, "work", str(workers)]],
    size=2_000,
    worker_counts=(2, 8),  # two cases are enough of the slow ones
    has_many=True,
    threads=True,
)
