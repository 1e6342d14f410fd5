"""Jobs a second that one program enqueues: a call and a commit for each, synced and not; with a row of the application
in each transaction; many in one call. What is synced survives a power cut; the others do not claim to.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path

from bench import floor
from bench.ours import Site
from bench.peers.base import Peer
from bench.trial import AS_SAID, Reading, Session, Trial

TITLE = "Enqueueing: jobs a second"
UNITS = {"enqueue": "jobs/s"}
ROUNDS = AS_SAID
ONE = "one call, one commit"
SYNCED = "one call, one commit, synced"
OWN = "with a row of the application's in each transaction"
MANY = "a call for many"
# Case, what ours_app.py calls it, its command, jobs
OURS = (
    (ONE, "NORMAL", "fill", 20_000),
    (SYNCED, "FULL", "fill", 1_000),
    (OWN, "APPLICATION", "fill", 20_000),
    (MANY, "FULL", "fill-many", 50_000),
)


def trials(session: Session) -> list[Trial]:
    def fewer(jobs: int) -> int:
        return session.pick(jobs, max(200, jobs // 10))

    found = [Trial("floor-1", ONE, partial(_bare, session, "NORMAL", fewer(30_000)))]
    found += [Trial("floor-1", SYNCED, partial(_bare, session, "FULL", fewer(1_000)))]
    found += [
        Trial("ours", case, partial(_ours, session, commit, what, fewer(jobs))) for case, commit, what, jobs in OURS
    ]
    for peer in session.peers:
        found.append(Trial(peer.name, ONE, partial(_peer, session, peer, fewer(peer.size))))
        if peer.can_sync:
            found.append(Trial(peer.name, SYNCED, partial(_peer, session, peer, fewer(1_000), synced=True)))
        if peer.has_many:
            found.append(Trial(peer.name, MANY, partial(_peer, session, peer, fewer(peer.size), many=True)))
    return found


def _ours(session: Session, commit: str, what: str, jobs: int) -> Reading:
    with session.scratch() as folder:
        told = Site(folder).call("ours_app.py", what, str(jobs), BENCH_COMMIT=commit)
    return {"enqueue": [jobs / float(told)]}


def _peer(session: Session, peer: Peer, jobs: int, *, many: bool = False, synced: bool = False) -> Reading:
    with session.scratch() as folder, peer.open(folder) as queue:
        return {"enqueue": [jobs / queue.seconds_to_fill(jobs, many=many, synced=synced)]}


def _bare(session: Session, synchronous: str, jobs: int) -> Reading:
    with session.scratch() as folder:
        return {"enqueue": [_insert_rate(folder, synchronous, jobs)]}


def _insert_rate(folder: Path, synchronous: str, jobs: int) -> float:
    with contextlib.closing(floor.lean_table(folder)) as connection:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        began = time.perf_counter()
        for _ in range(jobs):
            connection.execute(floor.INSERT)
        return jobs / (time.perf_counter() - began)
