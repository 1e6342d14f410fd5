"""One write of each kind, for a process that dies in the middle of it.

A case is the name of the statement to die at. `prepare` makes the rows that it needs, `write` does it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

from supervisor.domain.job import AlikeJobs, Claim, NewJob, Status
from supervisor.domain.recovery import JobPolicy, settle_expired
from supervisor.domain.settlement import Settlement, Usage, done, failed
from supervisor.engine import open_engine
from tests.store.kit import BROKEN, NOW, POLICY, Desk, supervisor_record, worker_record

Write = Callable[[Desk], object]
WORKER = worker_record("w1", name="tag-1")


def prepare(desk: Desk) -> None:
    """The same for all cases: jobs of every kind, some of them held by the worker w1, whose lock has run out."""
    for type_, count in (("held", 3), ("tag", 3), ("old", 2)):
        for _ in range(count):
            desk.put(type_)
    desk.put("tag", requires="gpu")
    desk.put("alone")
    desk.claims.register(WORKER)
    desk.maintenance.registry.register(supervisor_record("s1", desk.engine, "/nowhere"))
    for job in range(7, 9):
        desk.finish(job, Status.FAILED, at=NOW)
    desk.claim(["held"], 3)
    desk.operations.controls.pause("other", NOW)
    with contextlib.closing(sqlite3.connect(desk.engine.url.removeprefix("sqlite:///"))) as other, other:
        other.execute("INSERT INTO jobs (type, status) VALUES ('manual', 'running')")


def held(desk: Desk, *settlements: Callable[..., Settlement]) -> list[Settlement]:
    claims = desk.maintenance.locks.held_by("w1")
    assert len(claims) == 3
    return [settlements[n % len(settlements)](claim) for n, claim in enumerate(claims)]


def _failed(claim: Claim) -> Settlement:
    return failed(claim, BROKEN, POLICY, chance=0.5)


def _done(claim: Claim) -> Settlement:
    return done(claim, '"ok"', started_at=NOW)


def _plain(claim: Claim) -> Settlement:
    return done(claim, None, started_at=NOW)


def _used(claim: Claim) -> Settlement:
    return done(claim, None, started_at=NOW, usage=Usage(NOW, 1.5, 0.5, 1 << 20, "said"))


def _parent(claim: Claim) -> Settlement:
    return done(claim, None, children=(NewJob("child", "{}"), NewJob("child", "{}")))


def _reclaim(desk: Desk, owner: str) -> bool:
    row = next(row for row in desk.maintenance.locks.expired(NOW + 1e6, 10) if row.owner == owner)
    return desk.maintenance.locks.reclaim(row, lambda claim, by: settle_expired(claim, by, JobPolicy(), 0.5), NOW + 1e6)


CASES: dict[str, Write] = {
    "insert_job@2": lambda desk: desk.producer.enqueue([NewJob("tag", "{}", unique_key=key) for key in "abc"]),
    "insert_alike@2": lambda desk: desk.producer.enqueue(AlikeJobs(NewJob("tag", "{}"), ["[{},{}]", "[{}]"], 3)),
    "register_worker": lambda desk: desk.claims.register(worker_record("w2", name="tag-2")),
    "register_supervisor": lambda desk: desk.maintenance.registry.register(
        supervisor_record("s2", desk.engine, "/nowhere")
    ),
    "claim_group": lambda desk: desk.claim(want=2),
    "claim_one": lambda desk: desk.claim(["alone"], want=1),
    "claim_ids": lambda desk: desk.claim(want=3, capabilities="gpu"),
    "settle_done": lambda desk: desk.settle(*held(desk, _done)),
    "settle_plain": lambda desk: desk.settle(*held(desk, _plain)),
    "settle@2": lambda desk: desk.settle(*held(desk, _failed)),
    "insert_error": lambda desk: desk.settle(*held(desk, _done, _failed)),
    "insert_run": lambda desk: desk.settle(*held(desk, _used)),
    "insert_job": lambda desk: desk.settle(*held(desk, _parent)),
    "renew": lambda desk: desk.maintenance.locks.renew(["w1"], NOW + 1e6, NOW + 2e6),
    "forget_worker": lambda desk: desk.maintenance.locks.settle_dead("w1", held(desk, _failed), NOW, worker="tag-1"),
    "forget_supervisor": lambda desk: desk.maintenance.registry.forget("s1", NOW),
    "claim_of": lambda desk: _reclaim(desk, "w1"),
    "adopt_unowned": lambda desk: _reclaim(desk, ""),
    "retry": lambda desk: desk.operations.actions.retry([7, 8], NOW),
    "cancel_pending": lambda desk: desk.operations.actions.cancel(4, NOW),
    "request_cancel": lambda desk: desk.operations.actions.cancel(1, NOW),
    "delete_finished": lambda desk: desk.operations.actions.delete([7, 8]),
    "prune": lambda desk: desk.maintenance.finished.prune(0, 100, NOW + 1, NOW + 1),
    "prune_errors": lambda desk: desk.maintenance.finished.prune(0, 100, NOW + 1, NOW + 1),
    "prune_runs": lambda desk: desk.maintenance.finished.prune(0, 100, NOW + 1, NOW + 1),
    "set_control": lambda desk: desk.operations.controls.pause("tag", NOW),
    "clear_control": lambda desk: desk.operations.controls.resume("other"),
    "bump_reload": lambda desk: desk.operations.controls.request_reload(NOW),
}


def write(case: str, url: str) -> None:
    CASES[case](Desk.at(open_engine(url)))
