"""The concerns of an opened store, a small protocol each. All times are Unix seconds given by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from supervisor.domain.history import Minute, QueueSizes
from supervisor.domain.job import Attempt, Claim, Job, NewJob, Run, Status
from supervisor.domain.settlement import Settlement
from supervisor.domain.spool import SpooledFile
from supervisor.store.values import (
    Anomalies,
    ControlState,
    Cursor,
    Depth,
    ErrorGroup,
    Expired,
    Filter,
    GoneHost,
    JobSelector,
    Lease,
    Page,
    Planned,
    RecordedRun,
    Redriven,
    Retried,
    ServerState,
    Sort,
    SupervisorRecord,
    TypeSpeed,
    WorkerRecord,
)


class Registry(Protocol):
    """The supervisors and workers of this database."""

    def supervisors(self) -> list[SupervisorRecord]:
        """The running ones, and dead ones that have not been recovered yet."""

    def register(self, supervisor: SupervisorRecord) -> None: ...

    def forget(self, supervisor: str, now: float) -> None:
        """Remove a supervisor that has ended; the claims of its workers must have been settled. Its host counts as gone
        from then on, unless another supervisor is there.
        """

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        """Whether its process is running or, on another host, has a lease; None if this machine cannot tell."""

    def declare_dead(self, supervisor: SupervisorRecord) -> None:
        """Its lease ends now if its process has certainly ended; otherwise when it ends by itself."""

    def renew(self, supervisor: str, posted: str | None) -> float | None:
        """Renew a lease and post something for other hosts; None: what was posted still holds.

        Returns the time by the clock that all hosts share; None if the supervisor is not registered any more.
        """

    def leases(self) -> Mapping[str, Lease]:
        """The leases of all supervisors, by id; empty if none is needed."""

    def workers_of(self, supervisor: str) -> list[WorkerRecord]: ...

    def worker(self, incarnation: str) -> WorkerRecord | None: ...

    def gone(self, now: float) -> list[GoneHost]:
        """The hosts that had supervisors within the last day and have none now, the latest first."""


SettleExpired = Callable[[Claim, str], Settlement]
"""Decides what becomes of an expired claim of an owner, inside the transaction that reclaims it."""


class ClaimLocks(Protocol):
    """The locks of claimed jobs: renewed for live workers, reclaimed when they expire, released for dead workers."""

    def held_by(self, owner: str) -> list[Claim]:
        """A worker's claims, in the order in which it runs them."""

    def has_claims(self, supervisor: str) -> bool:
        """Whether any worker of this supervisor still holds a claim."""

    def settle_dead(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        now: float,
        *,
        worker: str | None = None,
        supervisor: str = "",
    ) -> int:
        """Settle what a dead worker held and remove it from the registry, in one transaction: or nothing of that, with
        LeaseHeld, if `supervisor` is given and has a lease again.

        Returns how many claims were settled; one that is no longer current does not count. Raises StoreError if a row
        can neither be settled nor quarantined; the others are settled even then.
        """

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int:
        """Extend locks that expire before `renew_before`. Without such a lock nothing is written."""

    def expired(self, now: float, limit: int) -> list[Expired]: ...

    def writable(self) -> bool:
        """Whether the database can be written now; waits for as long as any writer would."""

    def reclaim(self, claim: Expired, settle: SettleExpired, now: float) -> bool:
        """Take back one expired claim if it is still exactly as it was seen."""


class Backlog(Protocol):
    """What waits to be run, for which pools, and which files are kept for it."""

    def any_due(self, wanted: JobSelector, now: float) -> bool:
        """A cheap check that finds most due jobs: False does not mean that there are none."""

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        """Due jobs that are wanted, counted up to `limit`."""

    def by_type(self, now: float, limit: int) -> dict[str, Depth]:
        """The same for every type that has unfinished jobs, whatever they require."""

    def queue_sizes(self, now: float) -> list[QueueSizes]:
        """The due and the running jobs of each type that has any."""

    def unfinished(self, wanted: JobSelector, now: float, within: float) -> bool:
        """Whether any job is due, or delayed for another attempt within so many seconds."""

    def progress_of(self, types: Iterable[str], since: float) -> tuple[int, int]:
        """(jobs pending, jobs failed or quarantined since then) of these types."""

    def unhandled(self, types: Iterable[str]) -> list[str]:
        """Types of pending jobs other than these; a bounded number of them."""

    def due_groups(self, now: float) -> list[tuple[str, str, int]]:
        """(type, requires, priority) of due jobs, without duplicates; empty if there are too many to check."""

    def spooled(self, files: Iterable[SpooledFile]) -> dict[str, float | None]:
        """Those of these files that a job's payload names, by the name of the body, with the Unix time at which the job
        succeeded; None if it has not.
        """


class Controls(Protocol):
    """What operators set, and supervisors obey: paused types, pool sizes, reloads, cancellations."""

    def current(self) -> ControlState: ...

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        """(job id, token, owner) of jobs that this supervisor's workers run and that are to be cancelled."""

    def pause(self, type: str, now: float, host: str = "") -> None:
        """Everywhere, or on the hosts whose name matches `host`."""

    def resume(self, type: str, host: str = "") -> bool:
        """Everywhere, also where it was paused on single hosts; or take back one pause of exactly this `host`. Returns
        whether it was paused so.
        """

    def scale(self, pool: str, workers: int | None, now: float, host: str = "") -> None:
        """Fix a pool's size; None returns it to automatic scaling. Everywhere, in the place of what was set for single
        hosts; or on the hosts whose name matches `host`, where None leaves what was set for others.
        """

    def request_reload(self, now: float) -> None: ...

    def drain(self, host: str, now: float) -> bool:
        """From now on its supervisors claim nothing. Returns whether that is a change."""

    def undrain(self, host: str) -> bool:
        """They may claim again. Returns whether that is a change."""


class History(Protocol):
    """The finished jobs: of the last day by the minute, of the days before by the hour."""

    def minutes(self, since: float, until: float = inf, limit: int = -1) -> list[Minute]:
        """What was recorded from `since` on and before `until`, in order; with a `limit`, the first rows."""

    def added_up(self, since: float, until: float, step: float, limit: int = -1) -> list[Minute]:
        """The same, added up in steps of so many seconds that begin with `since`. Counts stop at 9e15."""

    def counted(self, supervisor: str) -> str:
        """The note that was stored with this supervisor's last recorded minutes; "{}" at first."""

    def record(self, supervisor: str, before: str, after: str, minutes: Sequence[Minute]) -> bool:
        """Add minutes and store the note `after`, in one transaction; or neither, if the note is not `before`."""

    def roll_up(self, before: float) -> int:
        """Put one row for each type in the place of the minutes of an hour, the first one before `before` (a full
        hour) that still has minutes. Returns how many rows went; without any, nothing is written.

        The counts are added and the minutes deleted in one transaction, so nothing is counted twice or lost.
        """

    def forget(self, before: float) -> int:
        """Delete rows that began before then. Without any, nothing is written."""


class AlertStore(Protocol):
    """What alerts have told, and the failed jobs that they tell of. Failed attempts have ascending numbers."""

    def state(self, alert: str) -> str | None:
        """What was stored for an alert; None for a new one."""

    def begin(self, alert: str, state: str) -> str:
        """Store the first state, unless there is one by now. Returns what is stored."""

    def advance(
        self, alert: str, before: str, after: str, jobs: Sequence[NewJob], now: float
    ) -> list[int | None] | None:
        """Store the state `after` and insert the jobs, both or neither. Returns their ids, None for a duplicate; or
        None if the state is not `before`.
        """

    def latest_error(self) -> int:
        """The number of the latest failed attempt; 0 if there is none."""

    def failed(self, status: str, after: int, until: int, type: str | None = None) -> list[tuple[str, int, int, str]]:
        """(type, number of jobs, id of the latest, its error) of the jobs that have this status now and had a failed
        attempt with a number in this range. Jobs that alerts have enqueued do not count.
        """


class FinishedJobs(Protocol):
    """Finished jobs, walked through a bounded number of rows at a time."""

    @property
    def alerts(self) -> AlertStore: ...

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        """Look at `limit` rows after an id. Returns (jobs deleted, id reached; 0 at the end of the table)."""

    def redrive(self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float) -> Redriven:
        """Look at `limit` jobs that failed after a cursor and not after `until` (Unix seconds), and set those that
        are wanted and were redriven fewer than `times` times back to pending, unless an unfinished job has their unique
        key.
        """


class Schedules(Protocol):
    """Each time of a schedule fires once. Commits survive power loss, as those of producers do."""

    def planned(self) -> list[Planned]:
        """Every schedule that was ever planned on this database, by name."""

    def plan(self, name: str, timing: str, next_at: float, *, type: str = "", payload: str = "{}") -> Planned:
        """The schedule's row; a new one, or one with another timing, is planned for `next_at` (Unix seconds).

        `type` and `payload` (JSON text) are those of its jobs.
        """

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        """Advance the schedule and insert the jobs, both or neither. Returns their ids, without those of jobs whose
        unique key an unfinished job has.

        None: somebody else has advanced it, or it is paused.
        """

    def pause(self, name: str, now: float) -> bool:
        """From now on it does not fire. Returns whether there is such a schedule."""

    def resume(self, name: str) -> bool:
        """The same, so that it fires again; what it has missed is the caller's business."""

    def run(self, name: str, now: float) -> int | None:
        """Insert its job now, paused or not; its next time stays. Returns the job's id.

        None: there is no such schedule, or it is not known what it enqueues.
        """


class Jobs(Protocol):
    """Looking at jobs. Lists begin with the latest job unless they say otherwise."""

    def get(self, job_id: int) -> Job | None: ...

    def attempts(self, job_id: int) -> list[Attempt]:
        """Its failed attempts."""

    def runs(self, job_id: int) -> list[Run]:
        """Its recorded runs, in order."""

    def latest_runs(self, after: int | None, limit: int) -> list[RecordedRun]:
        """The latest recorded runs of all jobs, in the order in which they were recorded: those after the one with
        this number, or any.
        """

    def latest(
        self, *, status: Status | None, type: str | None, before: int | None, limit: int, tags: tuple[str, ...] = ()
    ) -> list[Job]:
        """The latest matching jobs, however long that takes."""

    def page(self, which: Filter, *, before: int | None, limit: int) -> Page:
        """Matching jobs, found in a bounded time; see `Page`."""

    def arranged(self, which: Filter, *, by: Sort, descending: bool, before: int | None, limit: int) -> Page:
        """The first matching jobs of another order. Only the latest 10,000 are put in order, and only as many as are
        found in a bounded time; if there may be more, `next` is the id below which they are.
        """

    def count(self, which: Filter, *, limit: int) -> int:
        """The number of matching jobs, counted up to `limit`."""

    def ids(self, which: Filter) -> list[int]:
        """All matching jobs, the earliest first."""

    def some_ids(self, which: Filter, *, before: int | None, limit: int) -> tuple[list[int], int | None]:
        """At most `limit` matching jobs, and the id before which to continue; None: there are no more."""


class JobActions(Protocol):
    """Changing jobs by hand."""

    def retry(self, ids: Iterable[int], now: float) -> Retried:
        """Set finished, unsuccessful jobs back to pending with their counters reset.

        Skipped: jobs in another state, and those whose unique key an unfinished job has.
        """

    def rerun(self, job_id: int, now: float, *, payload: str | None, done: bool) -> Retried:
        """Retry one job with another payload (JSON text; None: its own), and with `done` even if it has succeeded."""

    def cancel(self, job_id: int, now: float) -> Status:
        """Cancel a pending job, or ask a running one to stop. Returns its new status."""

    def cancel_all(self, ids: Iterable[int], now: float) -> int:
        """Cancel those of these jobs that are pending, ask the running ones to stop. Returns how many."""

    def delete(self, ids: Iterable[int]) -> int:
        """Delete finished jobs with their errors and runs. Returns how many; unfinished ones are skipped."""


class Statistics(Protocol):
    """Numbers about the whole table."""

    def counts(self) -> list[tuple[str, Status, int]]:
        """All jobs, by type and status; reads the whole table."""

    def open_counts(self) -> list[tuple[str, Status, int]]:
        """Jobs that are unfinished, failed or quarantined, by type and status; the cost grows with their number."""

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        """Done and cancelled jobs, by type and status; reads the whole table, or estimates them."""

    def failures(self, since: float) -> list[tuple[str, int]]:
        """Failed attempts since then, by type."""

    def error_groups(self, since: float, limit: int) -> list[ErrorGroup]:
        """Failed attempts since then, the most frequent first; only the latest 10,000 are considered."""

    def speeds(self) -> list[TypeSpeed]:
        """How long the latest jobs of each type took, the slowest first."""

    def anomalies(self, now: float, slack: float, done_before: float, failed_before: float) -> Anomalies:
        """Rows that should not be there; may take seconds on a large table."""

    def now(self) -> float:
        """Unix seconds by the clock that decides when jobs are due: a server's, otherwise this machine's. A command
        writes this time, and compares it with those of jobs: the clock of an operator's machine may be wrong.
        """

    def server(self) -> ServerState | None:
        """None for an engine without a server."""

    def log_size(self) -> int:
        """Bytes of the write-ahead log; 0 for an engine whose log is not the concern of its users."""
