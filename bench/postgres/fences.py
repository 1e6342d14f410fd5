"""Whether a late worker can settle the run of its successor.

A worker begins a job and is stopped. Meanwhile the job goes to another worker, as after the contestant's own rescue.
The first one goes on, its handler ends, and the successor's claim stands or is gone. Another job, run by the same
worker after it, is the control: as soon as that has been settled, the late result has been sent, too.

The successor is always another worker, which is easiest to notice. No peer here looks at the worker. Ours
refuses the result, too, if the same worker has claimed again (tests/store/test_settling.py), but then it finds that
claim and runs the job once more, so the row would not show which result was written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from bench import waiting
from bench.postgres.contestants import OpenQueue
from bench.probe.tally import BEGUN, ENDED, RELEASED, Arrivals
from bench.trial import Reading

_PATIENCE = 60.0  # seconds for each step
_STILL = 0.5  # seconds for results on other connections, which the control may overtake


@dataclass(frozen=True)
class Takeover:
    """How a job goes to another worker. `claims` reads the running jobs, each with what its claim has of its own;
    `statements` take a job's `id`, in one transaction. With `by_program`, the contestant's program takes the job from
    its worker first: `PROGRAM rescue ID`.
    """

    claims: str
    statements: tuple[str, ...]
    by_program: bool = False


TAKEOVERS: Mapping[str, Takeover] = {
    "ours": Takeover(
        "SELECT id, row(locked_by, claim_token)::text FROM jobs WHERE status = 'running'",
        (
            # store/postgres/queries.sql: settle as pending, which adds one to the token, and claim_ids
            "UPDATE jobs SET status = 'pending', locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,"
            " claim_token = claim_token + 1, crashes = crashes + 1 WHERE id = %(id)s",
            "UPDATE jobs SET status = 'running', locked_by = 'another', locked_at = extract(epoch FROM now()),"
            " lock_expires_at = extract(epoch FROM now()) + 3600, claim_token = claim_token + 1,"
            " attempts = attempts + 1, started_at = extract(epoch FROM now()) WHERE id = %(id)s",
        ),
    ),
    "graphile": Takeover(
        "SELECT id, row(locked_by, locked_at, attempts)::text FROM graphile_worker._private_jobs"
        " WHERE locked_at IS NOT NULL",
        (
            # sql/000016.sql: force_unlock_workers; resetLockedAt in dist/sql/resetLockedAt.js does the same after 4 h
            "SELECT graphile_worker.force_unlock_workers(array_agg(locked_by)) FROM graphile_worker._private_jobs"
            " WHERE id = %(id)s",
            # dist/sql/getJobs.js: batchGetJobs
            "UPDATE graphile_worker._private_jobs SET attempts = attempts + 1, locked_by = 'another',"
            " locked_at = clock_timestamp() WHERE id = %(id)s",
        ),
    ),
    "pgqueuer": Takeover(
        "SELECT id, queue_manager_id::text FROM pgqueuer WHERE status = 'picked'",
        (
            # adapters/persistence/qb.py: build_dequeue_query, next_stale and claimed, does both
            "UPDATE pgqueuer SET status = 'picked', updated = now(), heartbeat = now(),"
            " queue_manager_id = gen_random_uuid() WHERE id = %(id)s",
        ),
    ),
    "awa": Takeover(
        "SELECT job_id, run_lease::text FROM awa.lease_claims AS claim WHERE closed_at IS NULL"
        " AND NOT EXISTS (SELECT FROM awa.terminal_jobs AS ended WHERE ended.job_id = claim.job_id)",
        # Its core is compiled (_awa.abi3.so), and its rescue waits for the end of the leader, which is the worker. Its
        # cancel and retry close the claim as well; this is the function by which its workers claim, with their deadline
        ("SELECT FROM awa.claim_ready_runtime('bench', 1, 300, 0)",),
        by_program=True,
    ),
    "oban": Takeover(
        "SELECT id, row(attempt, attempted_at)::text FROM oban_jobs WHERE state = 'executing'",
        (
            # queries/rescue_jobs.sql, called by _rescue in _lifeline.py
            "UPDATE oban_jobs SET state = 'available', meta = meta || '{\"rescued\": 1}' WHERE id = %(id)s",
            # queries/fetch_jobs.sql
            "UPDATE oban_jobs SET attempt = attempt + 1, attempted_at = timezone('UTC', now()),"
            " attempted_by = ARRAY['another', gen_random_uuid()::text], state = 'executing' WHERE id = %(id)s",
        ),
    ),
    "procrastinate": Takeover(
        "SELECT id, worker_id::text FROM procrastinate_jobs WHERE status = 'doing'",
        (
            # sql/schema.sql: what manager.py calls for a stalled job (retry_job), and for a worker (fetch_job)
            "SELECT procrastinate_retry_job_v2(%(id)s, now(), NULL, NULL, NULL)",
            "SELECT procrastinate_fetch_job_v2(NULL, (SELECT worker_id FROM procrastinate_register_worker_v1()))",
        ),
    ),
}


def measure(queue: OpenQueue, takeover: Takeover) -> Reading:
    """1: the late result was refused; 0: it was written."""
    url = (queue.folder / "url").read_text()
    queue.call("slow")
    with (
        contextlib.closing(Arrivals(queue.folder / "arrivals")) as arrivals,
        queue.workers(1, "slow") as programs,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        _await(arrivals, BEGUN)
        [(job, first)] = _claims(connection, takeover).items()
        with _stopped(programs):
            if takeover.by_program:
                queue.call("rescue", job)
            with connection.transaction():
                for statement in takeover.statements:
                    connection.execute(statement, {"id": job})
        successor = _claims(connection, takeover).get(job)
        if successor in (None, first):
            raise RuntimeError(f"no other worker has the job: {first}, {successor}")
        (queue.folder / RELEASED).touch()
        _await(arrivals, ENDED)
        queue.call("slow")
        _await(arrivals, ENDED)
        waiting.until(lambda: not _claims(connection, takeover).keys() - {job}, "the control is settled", _PATIENCE)
        time.sleep(_STILL)
        return {"fenced": [_claims(connection, takeover).get(job) == successor]}


def _claims(connection: psycopg.Connection[Any], takeover: Takeover) -> dict[int, str]:
    return dict(connection.execute(takeover.claims).fetchall())


def _await(arrivals: Arrivals, what: int) -> None:
    while arrivals.next(_PATIENCE).number != what:
        pass


@contextlib.contextmanager
def _stopped(programs: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """So that the worker does not claim again what is taken from it."""
    for program in programs:
        os.killpg(program.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for program in programs:
            os.killpg(program.pid, signal.SIGCONT)
