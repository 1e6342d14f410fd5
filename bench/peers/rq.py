"""RQ on Redis."""

from bench.peers import install
from bench.peers.base import PROGRAMS, Peer, python

_WORKER = (
    "import os; from redis import Redis; from rq import Worker; "
    "Worker(['bench'], connection=Redis.from_url(os.environ['BENCH_REDIS'])).work(logging_level='ERROR')"
)

PEER = Peer(
    name="rq",
    title="RQ",
    store="Redis",
    settings="`result_ttl=0`; a process for each worker, which forks for every job",
    keeps="it is marked failed, without Retry",
    needs=(install.PYTHON, install.REDIS),
    versions=lambda: install.python_versions("rq"),
    program=python(str(PROGRAMS / "rq_app.py")),
    command=lambda workers: [python("-c", _WORKER)] * workers,
    size=150,
    worker_counts=(2, 8),  # two cases are enough of the slow ones
    has_many=True,
)
