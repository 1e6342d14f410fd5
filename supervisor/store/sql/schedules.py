"""Jobs that the maintainer enqueues: for schedules and alerts.

A state is moved on and the jobs are inserted in one transaction, both or neither: each time of a schedule fires once,
and each alert tells once, no matter who is killed and how many supervisors there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from supervisor.domain.job import NewJob, Status, shown
from supervisor.domain.values import known_time
from supervisor.store.sql.connection import Concern

_ID = re.compile("[0-9]{1,18}")
_FULL = 200  # characters of ids


class Planned(NamedTuple):
    """A schedule's row: when it fires next, when it last did and by which job, and what it enqueues.

    Without a `type` it is not known what it enqueues. While it is paused, `next_at` stays as it was. `definition` are
    the keys of one that was made at run time, as JSON; None: a configuration has it.
    """

    name: str
    timing: str
    next_at: float
    last_at: float | None = None
    last_job: int | None = None
    type: str = ""
    payload: str = "{}"
    paused_at: float | None = None
    priority: int = 0
    expect_within: float | None = None
    expected_from: float | None = None
    definition: str | None = None

    def silent(self, now: float) -> float:
        """For how many seconds none of its jobs has succeeded, if one should have by now; otherwise 0."""
        if self.paused_at is not None or self.expect_within is None or self.expected_from is None:
            return 0.0
        silent = now - self.expected_from
        return silent if silent > self.expect_within else 0.0


class Schedules(Concern):
    """Each time of a schedule fires once. Its jobs are committed durably, as those of producers are."""

    def planned(self) -> list[Planned]:
        """Every schedule that was ever planned on this database, by name."""
        return [_read(row) for row in self._connection.rows(self._queries.schedules)]

    def plan(self, name: str, timing: str, next_at: float, **more: Any) -> Planned:
        """The row of a configuration's schedule; a new one, or one with another timing, is planned for `next_at` (Unix
        seconds). `more` is what else the configuration says of it.
        """
        wanted = Planned(name, timing, next_at, **more)
        found = self.one(name)
        said = ("timing", "type", "payload", "priority", "expect_within", "definition")
        known = found is not None and found.next_at  # a stranger may have written what is no time
        if not known or any(getattr(found, one) != getattr(wanted, one) for one in said):
            self._connection.apply(self._queries.plan, wanted._asdict() | {"before": None})
            found = self.one(name)
        return found or wanted

    def define(self, wanted: Planned, before: str | None, now: float) -> bool:
        """Make one at run time: a new one, or in the place of one with the definition `before`, which is empty for a
        configuration's. Returns whether it was so.
        """
        return self._tell(self._queries.plan, wanted._asdict() | {"before": before}, now)

    def remove(self, name: str, before: str, now: float) -> bool:
        """Delete one that has this definition. Returns whether it was so."""
        return self._tell(self._queries.remove_schedule, {"name": name, "before": before}, now)

    def _tell(self, statement: str, which: dict[str, Any], now: float) -> bool:
        """Change a schedule, and let every maintainer read again those that were made at run time."""
        with self._connection.write() as raw:
            changed = raw.execute(statement, which).rowcount > 0
            if changed:
                raw.execute(self._queries.bump_control, {"kind": "schedules", "now": now})
        return changed

    def one(self, name: str) -> Planned | None:
        row = self._connection.row(self._queries.schedule, {"name": name})
        return None if row is None else _read(row)

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        """Advance the schedule and insert the jobs, both or neither. Returns their ids, without those of jobs whose
        unique key an unfinished job has.

        None: somebody else has advanced or changed it, or it is paused.
        """
        which = {"name": planned.name, "timing": planned.timing, "planned": planned.next_at, "next_at": next_at}
        which["definition"] = planned.definition or ""
        ids = []
        with self._connection.syncing(True), self._connection.write() as raw:
            if not raw.execute(self._queries.move_on, which).rowcount:
                return None
            for job in jobs:
                job_id = self._connection.insert(raw, job, now)
                if job_id is None:
                    continue  # the job of an earlier time is unfinished
                ids.append(job_id)
                fired = {"name": planned.name, "last_at": job.scheduled_at, "last_job": job_id, "full": _FULL}
                raw.execute(self._queries.note_fired, fired)
        return ids

    def note_successes(self) -> None:
        """Where success is expected, it is from the last one on. A job that has failed is watched as long as there is
        room: it may be retried.
        """
        found = self._connection.rows(self._queries.watched)
        watched = {name: [int(job) for job in text.split() if _ID.fullmatch(job)] for name, text in found}
        ids = json.dumps([job for jobs in watched.values() for job in jobs])
        known = {job: more for job, *more in self._connection.rows(self._queries.ends, {"ids": ids})} if found else {}
        for name, text in found:
            jobs = {job: known[job] for job in watched[name] if job in known}
            times = [at for status, at in jobs.values() if status == "done" and isinstance(at, float)]
            dropped = {"done"} if len(text) < _FULL else {status for status in Status if status.finished}
            left = "".join(f" {job}" for job, (status, _) in jobs.items() if status not in dropped)
            if left != text:
                noted = {"name": name, "before": text, "watched": left, "at": max(times, default=0.0)}
                self._connection.apply(self._queries.note_success, noted)

    def pause(self, name: str, now: float) -> bool:
        """From now on it does not fire. Returns whether it did before."""
        return self._tell(self._queries.pause_schedule, {"name": name, "now": now}, now)

    def resume(self, name: str, now: float) -> bool:
        """It fires again, which it did not; what it has missed is the caller's business."""
        return self._tell(self._queries.resume_schedule, {"name": name, "now": now}, now)

    def run(self, name: str, now: float) -> int | None:
        """Insert its job now, paused or not; its next time stays. Returns the job's id.

        None: the schedule does not exist, or it is not known what it enqueues.
        """
        planned = self.one(name)
        if planned is None or not planned.type:
            return None
        job = NewJob(planned.type, planned.payload, priority=planned.priority, scheduled_at=now)
        with self._connection.syncing(True), self._connection.write() as raw:
            job_id = self._connection.insert(raw, job, now)
            fired = {"name": name, "last_at": now, "last_job": job_id, "full": _FULL}
            raw.execute(self._queries.note_fired, fired)
        return job_id


def _read(row: Sequence[Any]) -> Planned:
    """What is no time, such as infinity, is 0 or missing; a schedule that is paused stays so."""
    found = Planned(*row)
    paused_at = None if found.paused_at is None else known_time(found.paused_at) or 0.0
    others = ("last_at", "expect_within", "expected_from")
    times: dict[str, Any] = {name: known_time(getattr(found, name)) for name in others}
    return found._replace(next_at=known_time(found.next_at) or 0.0, paused_at=paused_at, **times)


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
