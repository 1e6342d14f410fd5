"""1,000 jobs a second while one transaction stays open: what is kept of the rate, and how many claims take long.

Ours alone: it takes as long as the transaction is held, and the peers' claims are not to be told apart in a log.
"""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg

from bench import waiting
from bench.postgres.contestants import OpenQueue
from bench.probe import tally
from bench.trial import Reading
from supervisor import Queue
from tests.postgres_server import Server

RATE = 1000  # jobs a second
LONG = 20  # milliseconds
_CALL = 0.05  # seconds between two calls that enqueue
_LAST = 60.0  # seconds: the part whose rate counts
_CLAIM = re.compile(r"duration: .* supervisor_settle_and_claim_v")
_PATIENCE = 20.0  # seconds for the first job


def measure(server: Server, queue: OpenQueue, held: float) -> Reading:
    """`held` is in seconds. The server's log tells the long claims, its statistics all of them."""
    url = (queue.folder / "url").read_text()
    with psycopg.connect(url, autocommit=True) as settings:
        for name, value in (("log_min_duration_statement", LONG), ("track_functions", "pl")):
            settings.execute(f'ALTER DATABASE "{settings.info.dbname}" SET {name} = {value}')
        already = len(server.log())
        with psycopg.connect(url) as old, queue.workers(2):
            old.execute("SELECT pg_current_xact_id()")
            with Queue(url) as jobs:
                jobs.enqueue("noop")
                waiting.until(lambda: tally.read(queue.folder).jobs, "the first job", _PATIENCE)
                kept = _feed(jobs, queue, held)
            old.rollback()
        (calls,) = _row(
            settings.execute("SELECT sum(calls) FROM pg_stat_user_functions WHERE funcname LIKE '%settle_and_claim%'")
        )
    slow = len(_CLAIM.findall(server.log()[already:]))
    return {"steady": [kept * 100], f"claims over {LONG} ms": [100 * slow / float(calls)]}


def _feed(jobs: Queue, queue: OpenQueue, seconds: float) -> float:
    """Enqueue at the rate; returns the share of it that was done in the last part."""
    began, calls, each = time.monotonic(), round(seconds / _CALL), int(RATE * _CALL)
    first = max(0, calls - round(_LAST / _CALL))  # of the last part
    for number in range(calls):
        time.sleep(max(0.0, began + number * _CALL - time.monotonic()))
        if number == first:
            before, since = tally.read(queue.folder).jobs, time.monotonic()
        jobs.enqueue_many("noop", [{}] * each)
    return (tally.read(queue.folder).jobs - before) / (time.monotonic() - since) / RATE


def _row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return tuple(row)
