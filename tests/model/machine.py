"""Whatever may happen to the table, in any order: our processes, people, and programs that know nothing of us."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from supervisor.domain.errors import Conflict, JobNotFound
from supervisor.domain.job import Status
from supervisor.store.base import Filter, JobSelector
from tests.model.processes import Processes, keys, some, types
from tests.model.programs import UniqueBroken
from tests.model.rows import Row

NOBODY = 4711  # an id that no job has

RETRIABLE = (Status.FAILED, Status.QUARANTINED, Status.CANCELLED)
FINISHED = tuple(status for status in Status if status.finished)
# What other programs write. A job that they hold passes the gates: tests/model/gates.py.
WRITTEN = tuple(status for status in Status if status is not Status.HELD)
FOREIGN_CLAIM = """
UPDATE jobs SET status = 'running', attempts = attempts + ?
WHERE id = (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT 1) RETURNING id
"""
FOREIGN_INSERT = """
INSERT INTO jobs (type, requires, unique_key, status, scheduled_at) VALUES (?, ?, ?, ?, ?) RETURNING id
"""


class StoreMachine(Processes):
    """The rules of `Processes`, and these."""

    def job(self, which: int, *statuses: Status) -> int:
        """Rather one in these states; the last numbers may be any, or none at all."""
        chosen = [row.id for row in self.rows(*statuses)]
        if chosen and which < 26:
            return chosen[which % len(chosen)]
        every = sorted(self.ground.table.rows)
        return every[which % len(every)] if every and which < 30 else NOBODY

    # Operators

    @precondition(lambda self: self.rows(Status.PENDING, Status.RUNNING))
    @rule(which=some, running=st.booleans())
    def cancel(self, which: int, running: bool) -> None:
        ground, job_id = self.ground, self.job(which, Status.RUNNING if running else Status.PENDING)
        try:
            status = ground.desk.operations.actions.cancel(job_id, ground.now)
        except (Conflict, JobNotFound):
            status = None
        assert status == ground.table.cancel(job_id, ground.now)
        for name in (ground.supervisor(letter) for letter in ground.lives):
            own = {worker.incarnation for worker in ground.desk.maintenance.registry.workers_of(name)}
            wanted = {
                (r.id, r.claim_token, r.locked_by)
                for r in self.rows(Status.RUNNING)
                if r.cancel_requested_at and r.locked_by in own
            }
            assert set(ground.desk.maintenance.controls.cancels(name, 1000)) == wanted

    @precondition(lambda self: self.rows(*RETRIABLE))
    @rule(which=st.lists(some, min_size=1, max_size=3), every=st.booleans())
    def retry(self, which: list[int], every: bool) -> None:
        """These jobs, or all of the state that the first of them is in."""
        ground, ids = self.ground, [self.job(number, *RETRIABLE) for number in which]
        if every and ids[0] in ground.table.rows:
            status = ground.table.rows[ids[0]].status
            ids = ground.desk.operations.jobs.ids(Filter((status,)))
            assert ids == [row.id for row in self.rows(status)]
        before = dict(ground.table.rows)
        assert ground.desk.operations.actions.retry(ids, ground.now).changed == ground.table.retry(ids, ground.now)
        ground.meddled -= {job_id for job_id in ids if before.get(job_id) != ground.table.rows.get(job_id)}

    @precondition(lambda self: self.rows(*FINISHED))
    @rule(which=some, done=st.booleans())
    def rerun(self, which: int, done: bool) -> None:
        ground, job_id = self.ground, self.job(which, *FINISHED)
        before = ground.table.rows.get(job_id)
        changed = ground.desk.operations.actions.rerun(job_id, ground.now, payload=None, done=done).changed
        assert changed == ground.table.retry([job_id], ground.now, done=done)
        ground.meddled -= {job_id} if before != ground.table.rows.get(job_id) else set()

    @rule(
        duty=st.sampled_from(["measure", "pause", "delete", "prune"]), which=some, age=st.sampled_from([0, 100, 1e10])
    )
    def keep_house(self, duty: str, which: int, age: float) -> None:
        duties: dict[str, Callable[[], None]] = {
            "measure": lambda: self.measure(self.ground.places[which % 4].wanted),
            "pause": lambda: self.pause_or_resume("ab"[which % 2]),
            "delete": lambda: self.delete([self.job(which, *FINISHED), self.job(which + 1, *FINISHED)]),
            "prune": lambda: self.prune(age, 1e10 - age),
        }
        duties[duty]()

    def delete(self, ids: list[int]) -> None:
        assert self.ground.desk.operations.actions.delete(ids) == self.ground.table.delete(ids)

    def prune(self, done_for: float, failed_for: float) -> None:
        ground = self.ground
        before = ground.now - done_for, ground.now - failed_for
        deleted, _ = ground.desk.maintenance.finished.prune(0, 1000, *before)
        assert deleted == ground.table.delete(ground.table.prunable(*before))

    def pause_or_resume(self, type_: str) -> None:
        operations, paused = self.ground.desk.operations, self.ground.table.paused
        if type_ in paused:
            assert operations.controls.resume(type_) is True
            paused.remove(type_)
        else:
            assert operations.controls.resume(type_) is False
            operations.controls.pause(type_, self.ground.now)
            paused.add(type_)

    def measure(self, wanted: JobSelector) -> None:
        ground = self.ground
        assert ground.desk.maintenance.backlog.depth(wanted, ground.now, 1000) == ground.table.depth(wanted, ground.now)
        ground.check_errors()

    # Programs that know nothing of claims

    @rule(deed=st.sampled_from(["claim", "settle", "reset", "reset more"]), which=some, status=st.sampled_from(WRITTEN))
    def foreign_program_acts(self, deed: str, which: int, status: Status) -> None:
        deeds: dict[str, Callable[[], None]] = {
            "claim": lambda: self.foreign_claim(which % 2),
            "settle": lambda: self.foreign_status(self.job(which, *(s for s in WRITTEN if s is not status)), status),
            "reset": lambda: self.foreign_reset(""),
            "reset more": lambda: self.foreign_reset(", locked_by = NULL, locked_at = NULL"),
        }
        deeds[deed]()

    def foreign_claim(self, attempts: int) -> None:
        """Some programs count attempts, some do not."""
        first = [row.id for row in self.rows(Status.PENDING)][:1]
        self.ground.foreign(FOREIGN_CLAIM, first, Status.RUNNING, attempts, attempts=attempts)

    def foreign_status(self, job_id: int, status: Status) -> None:
        known = [job_id] if job_id in self.ground.table.rows else []
        sql = "UPDATE jobs SET status = ? WHERE id = ? RETURNING id"
        self.ground.foreign(sql, known, status, status.value, job_id)

    def foreign_reset(self, also: str) -> None:
        running = [row.id for row in self.rows(Status.RUNNING)]
        sql = f"UPDATE jobs SET status = 'pending'{also} WHERE status = 'running' RETURNING id"
        self.ground.foreign(sql, running, Status.PENDING)

    @rule(type_=types, requires=st.sampled_from(["", "y  x", "gpu"]), key=keys, running=st.booleans())
    def foreign_program_inserts(self, type_: str, requires: str, key: str | None, running: bool) -> None:
        ground = self.ground
        status = Status.RUNNING if running else Status.PENDING
        twin = ground.table.unfinished_twin(type_, key)
        try:
            [(job_id,)] = ground.program.run(FOREIGN_INSERT, (type_, requires, key, status.value, ground.now))
        except UniqueBroken:
            assert twin is not None
            return
        assert twin is None
        ground.table.put(Row(job_id, type_, {}, status, requires=requires, scheduled_at=ground.now, unique_key=key))
        ground.meddled.add(job_id)

    @precondition(lambda self: self.running())
    @rule(which=some, change=st.sampled_from(["locked_by", "lock_expires_at", "the token", "the row"]))
    def somebody_meddles(self, which: int, change: str) -> None:
        """A running row is deleted, or its claim changed, by hand."""
        ground, running = self.ground, self.rows(Status.RUNNING)
        row = running[which % len(running)]
        ground.meddled.add(row.id)
        if change == "the row":
            for table in ("job_errors", "job_runs"):
                ground.program.run(f"DELETE FROM {table} WHERE job_id = ?", [row.id])
            ground.program.run("DELETE FROM jobs WHERE id = ?", [row.id])
            ground.table.forget(row.id)
        elif change == "the token":
            ground.program.run("UPDATE jobs SET claim_token = claim_token + 1 WHERE id = ?", [row.id])
            ground.table.put(row._replace(claim_token=row.claim_token + 1))
        else:
            ground.program.run(f"UPDATE jobs SET {change} = NULL WHERE id = ?", [row.id])
            ground.table.put(row._replace(**{change: None}))
