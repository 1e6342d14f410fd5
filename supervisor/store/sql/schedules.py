"""Jobs that the maintainer enqueues: for schedules and alerts.

A state is moved on and the jobs are inserted in one transaction, both or neither: each time of a schedule fires once,
and each alert tells once, no matter who is killed and how many supervisors there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from supervisor.domain.enqueueing import known_time
from supervisor.domain.job import NewJob, shown
from supervisor.store.sql.connection import Concern


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule's row: when it fires next, when it last did and by which job, and what it enqueues.

    Without a `type` it is not known what it enqueues. While it is paused, `next_at` stays as it was.
    """

    name: str
    timing: str
    next_at: float
    last_at: float | None = None
    last_job: int | None = None
    type: str = ""
    payload: str = "{}"
    paused_at: float | None = None


class Schedules(Concern):
    """Each time of a schedule fires once. Its jobs are committed durably, as those of producers are."""

    def planned(self) -> list[Planned]:
        """Every schedule that was ever planned on this database, by name."""
        return [_read(row) for row in self._connection.rows(self._queries.schedules)]

    def plan(self, name: str, timing: str, next_at: float, *, type: str = "", payload: str = "{}") -> Planned:
        """The schedule's row; a new one, or one with another timing, is planned for `next_at` (Unix seconds).

        `type` and `payload` (JSON text) are those of its jobs.
        """
        wanted = Planned(name, timing, next_at, type=type, payload=payload)
        found = self._planned(name)
        known = found is not None and found.next_at  # a stranger may have written what is no time
        if not known or found is None or (found.timing, found.type, found.payload) != (timing, type, payload):
            self._connection.apply(self._queries.plan, asdict(wanted))
            found = self._planned(name)
        return found or wanted

    def _planned(self, name: str) -> Planned | None:
        row = self._connection.row(self._queries.schedule, {"name": name})
        return None if row is None else _read(row)

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        """Advance the schedule and insert the jobs, both or neither. Returns their ids, without those of jobs whose
        unique key an unfinished job has.

        None: somebody else has advanced it, or it is paused.
        """
        which = {"name": planned.name, "timing": planned.timing, "planned": planned.next_at, "next_at": next_at}
        ids = []
        with self._connection.syncing(True), self._connection.write() as raw:
            if not raw.execute(self._queries.move_on, which).rowcount:
                return None
            for job in jobs:
                job_id = self._connection.insert(raw, job, now)
                if job_id is None:
                    continue  # the job of an earlier time is unfinished
                ids.append(job_id)
                fired = {"name": planned.name, "last_at": job.scheduled_at, "last_job": ids[-1]}
                raw.execute(self._queries.note_fired, fired)
        return ids

    def pause(self, name: str, now: float) -> bool:
        """From now on it does not fire. Returns whether there is such a schedule."""
        return bool(self._connection.apply(self._queries.pause_schedule, {"name": name, "now": now}))

    def resume(self, name: str) -> bool:
        """The same, so that it fires again; what it has missed is the caller's business."""
        return bool(self._connection.apply(self._queries.resume_schedule, {"name": name}))

    def run(self, name: str, now: float) -> int | None:
        """Insert its job now, paused or not; its next time stays. Returns the job's id.

        None: the schedule does not exist, or it is not known what it enqueues.
        """
        planned = self._planned(name)
        if planned is None or not planned.type:
            return None
        job = NewJob(planned.type, planned.payload, scheduled_at=now)
        with self._connection.syncing(True), self._connection.write() as raw:
            job_id = self._connection.insert(raw, job, now)
            raw.execute(self._queries.note_fired, {"name": name, "last_at": now, "last_job": job_id})
        return job_id


def _read(row: Sequence[Any]) -> Planned:
    """What is no time, such as infinity, is 0 or missing; a schedule that is paused stays so."""
    found = Planned(*row)
    paused_at = None if found.paused_at is None else known_time(found.paused_at) or 0.0
    return replace(
        found, next_at=known_time(found.next_at) or 0.0, last_at=known_time(found.last_at), paused_at=paused_at
    )


class AlertStore(Concern):
    """What alerts have told, and the failed jobs that they tell of. Failed attempts have ascending numbers.

    A power loss undoes a state and its jobs together.
    """

    def state(self, alert: str) -> str | None:
        """What was stored for an alert; None for a new one."""
        row = self._connection.row(self._queries.meta, {"key": alert})
        return None if row is None else str(row[0])

    def begin(self, alert: str, state: str) -> str:
        """Store the first state, unless there is one by now. Returns what is stored."""
        self._connection.apply(self._queries.insert_meta, {"key": alert, "value": state})
        return self.state(alert) or state

    def advance(
        self, alert: str, before: str, after: str, jobs: Sequence[NewJob], now: float
    ) -> list[int | None] | None:
        """Store the state `after` and insert the jobs, both or neither. Returns their ids, None for a duplicate; or
        None if the state is not `before`.
        """
        with self._connection.write() as raw:
            if not raw.execute(self._queries.advance_alert, {"key": alert, "before": before, "after": after}).rowcount:
                return None
            return [self._connection.insert(raw, job, now) for job in jobs]

    def latest_error(self) -> int:
        """The number of the latest failed attempt; 0 if there is none."""
        row = self._connection.row(self._queries.latest_error)
        return int(row[0] or 0) if row else 0

    def failed(self, status: str, after: int, until: int, type: str | None = None) -> list[tuple[str, int, int, str]]:
        """(type, number of jobs, id of the latest, its error) of the jobs that have this status now and had a failed
        attempt with a number in this range. Jobs that alerts have enqueued do not count.
        """
        which = {"status": status, "after": after, "until": until, "type": type}
        rows = self._connection.rows(self._queries.failed_jobs, which)
        return [(shown(type_), int(jobs), int(job), shown(error)) for type_, jobs, job, error, _ in rows]
