"""When a job may run, in plain Python: limits of types and of keys, jobs after others, and times. No rates, no turns.

The gates are after, due, key, type. Whatever happens to the rows, whoever has room lets the first one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from supervisor.domain.job import Status

NEVER = 4e9  # a time that does not come
UNSUCCESSFUL = (Status.FAILED, Status.CANCELLED, Status.QUARANTINED)


@dataclass
class GatedJob:
    """`hold` is the gate at which it is; '' beyond all of them. `at_after`: it was cancelled while it waited there."""

    id: int
    type: str
    key: str | None
    priority: int
    at: float
    unique_key: str | None
    status: Status = Status.HELD
    hold: str = "due"
    at_after: bool = False

    @property
    def place(self) -> tuple[int, float, int]:
        return -self.priority, self.at, self.id


def shown(status: str, hold: str | None, at: float) -> str:
    """A job without gates that is not due is pending, one with gates is held."""
    if status in ("pending", "held") and hold in (None, "", "due") and at >= NEVER:
        return "later"
    return f"held: {hold}" if status == "held" else status


@dataclass
class GateTable:
    """`limits` are (max_running, per_key) of a type. An edge is (before, later): what `later` does on a failure."""

    jobs: dict[int, GatedJob] = field(default_factory=dict)
    edges: dict[tuple[int, int], str] = field(default_factory=dict)
    limits: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def chosen(self, *statuses: Status) -> list[GatedJob]:
        return [job for job in self.jobs.values() if job.status in statuses]

    def twin(self, type_: str, unique_key: str | None) -> int | None:
        unfinished = [job for job in self.jobs.values() if not job.status.finished and job.unique_key is not None]
        return next((job.id for job in unfinished if (job.type, job.unique_key) == (type_, unique_key)), None)

    def most(self, type_: str) -> tuple[float, float]:
        of_type, of_key = self.limits.get(type_, (None, None))
        return float("inf") if of_type is None else of_type, 1 if of_key is None else of_key

    def beyond(self, type_: str, key: str) -> list[GatedJob]:
        """Those of a key that have passed its gate and have not ended."""
        every = self.chosen(Status.HELD, Status.PENDING, Status.RUNNING)
        return [job for job in every if (job.type, job.key) == (type_, key) and job.hold in ("", "type")]

    def admitted(self, type_: str) -> list[GatedJob]:
        return [job for job in self.chosen(Status.PENDING, Status.RUNNING) if job.type == type_]

    # What happens

    def insert(self, job: GatedJob, before: Iterable[int], on_failed: str) -> None:
        self.jobs[job.id] = job
        self.edges |= {(one, job.id): on_failed for one in before}
        if any(later == job.id for _, later in self.edges):
            job.hold = "after"
            for one in before:
                self.moved(self.jobs[one])
        self.open()

    def becomes(self, job: GatedJob, status: Status) -> None:
        """A job starts, ends, or is to run again: then it passes the gates again."""
        again = status is Status.PENDING
        job.status, job.hold = (Status.HELD, "due") if again else (status, "")
        job.at_after = False
        self.moved(job)
        self.open()

    def moved(self, job: GatedJob) -> None:
        """What it means for those that follow it."""
        if job.status not in UNSUCCESSFUL:
            for later in self.cancelled_after(job.id):
                later.status, later.hold, later.at_after = Status.HELD, "after", False
                if any(self.jobs[before].status in UNSUCCESSFUL for before in self.before(later.id, "cancel")):
                    self.end_unsuccessfully(later)
        if job.status is Status.DONE:
            for edge in [edge for edge in self.edges if edge[0] == job.id]:
                self.let_go(edge)
        if job.status in UNSUCCESSFUL:
            self.fail_later(job)

    def fail_later(self, job: GatedJob) -> None:
        for edge, on_failed in list(self.edges.items()):
            later = self.jobs[edge[1]]
            if edge[0] != job.id or edge not in self.edges:
                continue
            if on_failed == "run":
                self.let_go(edge)
            elif later.hold == "after" and later.status is Status.HELD:
                self.end_unsuccessfully(later)

    def end_unsuccessfully(self, job: GatedJob) -> None:
        job.status, job.hold, job.at_after = Status.CANCELLED, "", True
        self.fail_later(job)

    def let_go(self, edge: tuple[int, int]) -> None:
        del self.edges[edge]
        later = self.jobs[edge[1]]
        if later.hold == "after" and not any(other == later.id for _, other in self.edges):
            later.hold = "due"

    def before(self, job_id: int, on_failed: str) -> Iterator[int]:
        return (one for (one, later), kind in self.edges.items() if later == job_id and kind == on_failed)

    def cancelled_after(self, job_id: int) -> list[GatedJob]:
        """What was cancelled because of this job, before whatever was cancelled because of those."""
        found: list[GatedJob] = []
        for one in (job_id, *(job.id for job in found)):
            found += [self.jobs[b] for a, b in self.edges if a == one and self.jobs[b].at_after]
        for job in found:
            found += [
                self.jobs[b]
                for a, b in self.edges
                if a == job.id and self.jobs[b].at_after and self.jobs[b] not in found
            ]
        return found

    def change_limit(self, type_: str, limit: tuple[int | None, int | None] | None) -> None:
        """What is pending passes the gates again."""
        if limit is None:
            self.limits.pop(type_, None)
        else:
            self.limits[type_] = limit
        for job in self.chosen(Status.PENDING):
            if job.type == type_:
                job.status, job.hold = Status.HELD, "due"
        self.open()

    def open(self) -> None:
        """Whoever has room lets the first ones pass."""
        for job in self.chosen(Status.HELD):
            if job.hold == "due" and job.at < NEVER:
                job.hold = "type" if job.key is None else "key"
        for job in sorted(self.chosen(Status.HELD), key=lambda job: job.place):
            if job.hold == "key" and len(self.beyond(job.type, job.key or "")) < self.most(job.type)[1]:
                job.hold = "type"
        for job in sorted(self.chosen(Status.HELD), key=lambda job: job.place):
            if job.hold == "type" and len(self.admitted(job.type)) < self.most(job.type)[0]:
                job.status, job.hold = Status.PENDING, ""
