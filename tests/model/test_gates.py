"""Real gates beside the model of them: after every step the same jobs are held, at the same gates."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import Settlement, cancelled, done, failed, released
from supervisor.engine import open_engine
from tests.model.gates import NEVER, UNSUCCESSFUL, GatedJob, GateTable, shown
from tests.model.histories import PATIENCE, histories
from tests.model.programs import PROGRAMS, UniqueBroken
from tests.store.kit import BROKEN, ENGINES, POLICY, Desk, worker_record

TYPES = ("free", "narrow", "keyed")
LIMITS = {"narrow": (2, None), "keyed": (None, 2)}
some = st.integers(0, 30)
ENDS: dict[str, tuple[Status, Callable[[Claim], Settlement]]] = {
    "done": (Status.DONE, lambda claim: done(claim, None)),
    "failed": (Status.FAILED, lambda claim: failed(claim, BROKEN, POLICY, chance=0.5, permanent=True)),
    "cancelled": (Status.CANCELLED, cancelled),
    "released": (Status.PENDING, released),
}


class GateMachine(RuleBasedStateMachine):
    engine = ""
    fresh_url: Callable[[str, Path], str]
    desk: Desk

    @initialize()
    def open(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="job-supervisor-gates-", dir=memory))
        opened = open_engine(self.fresh_url(self.engine, self.folder))
        self.desk, self.program, self.model = Desk.at(opened), PROGRAMS[self.engine](opened.url), GateTable()
        self.claims: dict[int, tuple[str, Claim]] = {}
        self.lives = 0
        for type_, limit in LIMITS.items():
            self.operator_changes_a_limit(type_, limit)

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.program.close()
            self.desk.close()
            shutil.rmtree(self.folder)

    @invariant()
    def the_same_jobs_are_held_at_the_same_gates(self) -> None:
        if not hasattr(self, "desk"):
            return
        gates = self.desk.maintenance.gates
        while gates.next_due()[0] <= time.time():
            gates.admit_due(time.time())
        rows = self.program.run("SELECT id, status, hold, scheduled_at FROM jobs")
        stored = {job_id: shown(status, hold, at) for job_id, status, hold, at in rows}
        wanted = {job.id: shown(job.status, job.hold, job.at) for job in self.model.jobs.values()}
        assert stored.keys() == wanted.keys()
        wrong = {job_id: (stored[job_id], of) for job_id, of in wanted.items() if stored[job_id] != of}
        assert not wrong, f"is, should be: {wrong}"

    def job(self, which: int, *statuses: Status) -> GatedJob:
        jobs = self.model.chosen(*statuses)
        return jobs[which % len(jobs)]

    # Programs

    @rule(
        type_=st.sampled_from(TYPES),
        key=st.sampled_from([None, "k", "k", "l"]),
        priority=st.sampled_from([0, 0, 5]),
        at=st.sampled_from([1.0, 2.0, 3.0, 3.0, NEVER]),
        unique_key=st.sampled_from([None, None, "u"]),
        before=st.just([]),  # jobs after others: the model and SQLite differ about what is armed again
        on_failed=st.sampled_from(["cancel", "cancel", "run"]),
    )
    def enqueue(
        self,
        type_: str,
        key: str | None,
        priority: int,
        at: float,
        unique_key: str | None,
        before: list[int],
        on_failed: str,
    ) -> None:
        # Graphs are in tests/store/gates/test_after.py: here a job has one before it, which has none.
        every = [job_id for job_id in self.model.jobs if job_id not in {later for _, later in self.model.edges}]
        after = tuple(dict.fromkeys(every[which % len(every)] for which in before)) if every else ()
        extra: Any = {} if key is None else {"concurrency_key": key}
        new = NewJob(type_, "{}", priority, "", at, None, unique_key, extra, after, on_failed)
        job_id, is_new = self.desk.producer.put(new)
        twin = self.model.twin(type_, unique_key)
        assert (job_id if twin is None else twin, twin is None) == (job_id, is_new)
        if is_new:
            self.model.insert(GatedJob(job_id, type_, key, priority, at, unique_key), after, on_failed)

    # Workers

    @rule(type_=st.sampled_from(TYPES))
    def a_worker_claims(self, type_: str) -> None:
        """Each worker holds one job."""
        owner, self.lives = f"w{self.lives}", self.lives + 1
        self.desk.claims.register(worker_record(owner, "s"))
        found = self.desk.claim([type_], owner=owner, now=time.time())
        waiting = [job for job in self.model.chosen(Status.PENDING) if job.type == type_]
        first = min(waiting, key=lambda job: job.place, default=None)
        assert [claim.job_id for claim in found] == ([] if first is None else [first.id])
        for claim in found:
            self.model.becomes(self.model.jobs[claim.job_id], Status.RUNNING)
            self.claims[claim.job_id] = owner, claim

    @precondition(lambda self: self.claims)
    @rule(which=some, end=st.sampled_from([*ENDS, "done"]), killed=st.booleans())
    def a_run_ends(self, which: int, end: str, killed: bool) -> None:
        """By its worker, or in the name of one that is dead."""
        job_id = list(self.claims)[which % len(self.claims)]
        owner, claim = self.claims.pop(job_id)
        status, settlement = ENDS[end]
        if killed:
            assert self.desk.maintenance.locks.settle_dead(owner, [settlement(claim)], time.time()) == 1
        else:
            assert self.desk.settle(settlement(claim), owner=owner, now=time.time()) == []
        self.model.becomes(self.model.jobs[job_id], status)

    # Operators

    @precondition(lambda self: self.model.chosen(Status.PENDING, Status.HELD))
    @rule(which=some)
    def cancel(self, which: int) -> None:
        job = self.job(which, Status.PENDING, Status.HELD)
        assert self.desk.operations.actions.cancel(job.id, time.time()) is Status.CANCELLED
        self.model.becomes(job, Status.CANCELLED)

    @precondition(lambda self: self.model.chosen(*UNSUCCESSFUL))
    @rule(which=some)
    def retry(self, which: int) -> None:
        job, now = self.job(which, *UNSUCCESSFUL), time.time()
        free = self.model.twin(job.type, job.unique_key) is None
        assert self.desk.operations.actions.retry([job.id], now).changed == free
        if free:
            job.at = now
            self.model.becomes(job, Status.PENDING)

    @rule(type_=st.sampled_from(TYPES), limit=st.sampled_from([None, (None, None), (1, None), (3, 2), (None, 1)]))
    def operator_changes_a_limit(self, type_: str, limit: tuple[int | None, int | None] | None) -> None:
        """While no job with a key waits: SQLite tries the first ones of several keys in the order of their ids then."""
        waiting = self.model.chosen(Status.PENDING, Status.HELD)
        if any(job.key is not None and job.type == type_ for job in waiting):
            return
        limits = None if limit is None else Limits(max_running=limit[0], per_key=limit[1])
        self.desk.operations.gates.choose(type_, limits, time.time())
        self.model.change_limit(type_, limit)

    # Programs that know nothing of gates

    @precondition(lambda self: self.model.chosen(Status.PENDING, Status.HELD))
    @rule(which=some, deed=st.sampled_from(["hold", "claim", "end", "delete", "bring forward"]))
    def foreign_program_acts(self, which: int, deed: str) -> None:
        job = self.job(which, Status.PENDING, Status.HELD)
        if deed == "bring forward" and job.hold == "due":
            job.at = 4.0
            self.program.run("UPDATE jobs SET scheduled_at = 4 WHERE id = ?", [job.id])
            self.model.open()
        elif deed == "delete" and not any(job.id in edge for edge in self.model.edges):
            self.program.run("DELETE FROM jobs WHERE id = ?", [job.id])
            del self.model.jobs[job.id]
            self.desk.maintenance.gates.sweep(time.time())
            self.model.open()
        elif job.status is Status.PENDING and deed in ("hold", "claim", "end"):
            status = {"hold": Status.HELD, "claim": Status.RUNNING, "end": Status.DONE}[deed]
            self.program.run("UPDATE jobs SET status = ? WHERE id = ?", [status.value, job.id])
            self.model.becomes(job, Status.PENDING if status is Status.HELD else status)
            self.desk.maintenance.gates.sweep(time.time())

    @precondition(lambda self: [job for job in self.model.chosen(Status.RUNNING) if job.id not in self.claims])
    @rule(which=some, status=st.sampled_from([Status.DONE, Status.FAILED, Status.PENDING]))
    def foreign_program_settles(self, which: int, status: Status) -> None:
        jobs = [job for job in self.model.chosen(Status.RUNNING) if job.id not in self.claims]
        job = jobs[which % len(jobs)]
        self.program.run("UPDATE jobs SET status = ? WHERE id = ?", [status.value, job.id])
        self.model.becomes(job, status)

    @precondition(lambda self: self.model.chosen(*UNSUCCESSFUL, Status.DONE))
    @rule(which=some)
    def foreign_program_sets_back(self, which: int) -> None:
        job = self.job(which, *UNSUCCESSFUL, Status.DONE)
        free = self.model.twin(job.type, job.unique_key) is None
        try:
            self.program.run("UPDATE jobs SET status = 'pending', cancel_requested_at = NULL WHERE id = ?", [job.id])
        except UniqueBroken:
            assert not free
        else:
            assert free
            self.model.becomes(job, Status.PENDING)


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_happens_the_gates_are_as_the_model_says(engine: str, fresh_url: Callable[[str, Path], str]) -> None:
    histories(engine, fresh_url, GateMachine)
