"""Celery on Redis."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python


def _command(workers: int) -> list[list[str]]:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    pool = ["--pool", "prefork", "--concurrency", str(workers)]
    return [python("-m", "celery", "--app", "celery_app", "worker", *pool, *quiet)]


PEER = Peer(
    name="celery",
    title="Celery",
    store="Redis",
    settings=(
        "no results, prefork pool, jobs acknowledged before they run (the default); without gossip, mingle and "
        "heartbeat"
    ),
    keeps="no; with acks_late and reject_on_worker_lost, it runs again at once",
    needs=(install.PYTHON, install.REDIS),
    versions=lambda: install.python_versions("celery"),
    program=python(str(PROGRAMS / "celery_app.py")),
    command=_command,
    size=3_000,
    worker_counts=(2, 8),  # two cases are enough of the slow ones
)
