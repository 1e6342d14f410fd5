"""DBOS on SQLite: one process, because more of them need a service for their recovery."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python

_PROGRAM = python(str(PROGRAMS / "dbos_app.py"), place=install.WHEELS_PLACE)

PEER = Peer(
    name="dbos",
    title="DBOS",
    store="SQLite",
    settings=(
        "a process with a thread for each worker; polls every 10 ms, claims up to 100 jobs at once, a commit for "
        "each result. An engine of our own sets WAL and `NORMAL`: by itself DBOS uses a rollback journal with "
        "`FULL`, so that every commit waits for the disk"
    ),
    keeps="yes: when its process is started again",
    needs=(install.WHEELS,),
    versions=lambda: install.python_versions("dbos", place=install.WHEELS_PLACE),
    program=_PROGRAM,
    command=lambda workers: [[*_PROGRAM, "work", str(workers)]],
    size=1_000,
    worker_counts=(2, 8),  # two cases are enough of the slow ones
    threads=True,
)
