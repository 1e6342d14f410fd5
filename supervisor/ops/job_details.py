"""One job: its row, its runs and errors, what its worker reports, its timeline, and the limits of its pools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from supervisor.domain.errors import JobNotFound
from supervisor.domain.job import Attempt, Job, Run, Status
from supervisor.domain.settlement import FollowUps, RetryPolicy
from supervisor.domain.text import counted, human, text_of
from supervisor.ops.diagnosis import able
from supervisor.ops.supervisors import seen
from supervisor.store.base import Operations

if TYPE_CHECKING:
    from supervisor.config.settings import Settings

_ENDS_OF_JOBS = ("done", "cancelled")  # the job's own end tells of these
_SAME = 0.5  # seconds; start times that differ by less are the same start


class Doing(NamedTuple):
    """What the worker that runs a job reports about it."""

    worker: str
    progress: float | None
    text: str


def running(operations: Operations) -> dict[int, Doing]:
    """The jobs that are running now, by id, as far as this user can read the scoreboards."""
    slots = [slot for one in seen(operations) for slot in one.workers]
    return {slot.job: Doing(slot.name, slot.progress, slot.text) for slot in slots if slot.job}


class Everything(NamedTuple):
    """All that is known about one job; `worker` is the name of the worker that has claimed it, `host` where it runs,
    and `after` the jobs before it, see `Jobs.predecessors`.
    """

    job: Job
    errors: list[Attempt]
    runs: list[Run]
    worker: str | None
    doing: Doing | None
    host: str | None
    after: list[int]


def everything(operations: Operations, job_id: int) -> Everything:
    """Raises JobNotFound."""
    job = operations.jobs.get(job_id) if abs(job_id) < 2**63 else None
    if job is None:
        raise JobNotFound(job_id)
    doing = running(operations).get(job_id) if job.status is Status.RUNNING else None
    owner = operations.registry.worker(job.locked_by) if job.locked_by else None
    worker = None if owner is None else text_of(owner.name)
    known = [] if owner is None else operations.registry.supervisors()
    host = next((text_of(one.host) for one in known if owner is not None and one.id == owner.supervisor), None)
    jobs = operations.jobs
    about = (jobs.attempts(job_id), jobs.runs(job_id), worker, doing, host)
    return Everything(job, *about, jobs.predecessors(job_id))


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a job: its record and its error. One of the two may be missing.

    `duration` is what a run took wherever one is told: the seconds from its start to its end, as its worker, or who has
    found it dead, has measured them. `began` is never after `ended`, in Unix seconds.
    """

    run: Run | None
    error: Attempt | None
    attempt: int
    outcome: str
    worker: str | None
    began: float
    ended: float | None
    duration: float | None
    peak_memory: int | None


def trial_of(run: Run | None, error: Attempt | None) -> Trial:
    known = [one for one in (run, error) if one is not None]

    def first(name: str) -> Any:
        return next((value for one in known if (value := getattr(one, name, None)) is not None), None)

    duration, told = first("duration"), [] if error is None else [error.created_at]
    began = run.started_at if run is not None else told[0] - (duration or 0.0)
    ended = min([*told, *([] if duration is None else [began + duration])], default=None)
    began = began if ended is None else min(began, ended)  # by the clocks of two hosts
    outcome, worker = first("kind") or first("outcome"), first("worker") or None
    return Trial(run, error, first("attempt"), outcome, worker, began, ended, duration, first("peak_memory"))


def durations(operations: Operations, jobs: Iterable[Job]) -> dict[int, float]:
    """What the last run of each job that is done took: the `duration` of its `Trial`. One that was too short for a
    record took until it was settled.
    """
    ended = {job.id: (job.started_at, job.completed_at) for job in jobs if job.status is Status.DONE}
    known = {each: max(0.0, b - a) for each, (a, b) in ended.items() if _is_time(a) and _is_time(b)}
    return known | operations.jobs.durations([*ended])


@dataclass(frozen=True, slots=True)
class Step:
    """An event in the life of a job: `tone` is a state, or empty. `at` is Unix seconds."""

    at: float
    what: str
    tone: str = ""


def trials(runs: Iterable[Run], errors: Iterable[Attempt]) -> list[Trial]:
    """The runs of a job, the latest first. A run and an error belong together if attempt and kind agree."""
    left = list(errors)
    found = []
    for run in runs:
        match = next((e for e in left if (e.attempt, e.kind) == (run.attempt, run.outcome)), None)
        if match is not None:
            left.remove(match)
        found.append(trial_of(run, match))
    found += [trial_of(None, error) for error in left]
    return sorted(found, key=lambda trial: trial.began, reverse=True)


def steps(found: Job, tried: Sequence[Trial]) -> list[Step]:
    """The events of a job in order of time; none comes after its end."""
    waited = not _is_time(found.created_at) or found.scheduled_at > found.created_at + 0.5
    moments = [
        (found.created_at, "created", ""),
        (found.scheduled_at if waited else None, "due", ""),
        (found.cancel_requested_at, "asked to stop", "cancelled"),
    ]
    number = 0  # of the run: one that crashed or was released did not use up its attempt
    for trial in reversed(tried):
        began, number = trial.began, max(number + 1, trial.attempt)
        named = _named(number, trial.attempt)
        moments.append((began, f"{named} started" + (f" in {trial.worker}" if trial.worker else ""), "running"))
        if trial.outcome not in _ENDS_OF_JOBS:
            moments.append((trial.ended, f"{named} ended: {trial.outcome}", "failed" if trial.error else ""))
    start = found.started_at
    if _is_time(start) and not any(abs(trial.began - start) < _SAME for trial in tried):
        # It is still running, or was too short to be recorded.
        attempt = max(1, found.attempts)
        moments.append((start, f"{_named(max(number + 1, attempt), attempt)} started", "running"))
    known = [Step(float(at), what, tone) for at, what, tone in moments if _is_time(at)]
    ended = found.completed_at
    if _is_time(ended):
        # Leave out a due time after the end.
        known = [step for step in known if step.at <= ended]
        known.append(Step(float(ended), found.status.value, found.status.value))
    return sorted(known, key=lambda step: step.at)


def _named(number: int, attempt: int) -> str:
    return f"attempt {attempt}" if number == attempt else f"run {number} (attempt {attempt})"


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Limits(NamedTuple):
    """Those of one pool: of the decorator of a task, `[types.NAME]`, the pool or the defaults. `timeout` is seconds."""

    pool: str
    timeout: float
    retry: RetryPolicy
    follow: FollowUps
    max_crashes: int

    def as_json(self) -> dict[str, Any]:
        own = {
            "pool": self.pool,
            "timeout": self.timeout,
            "retry": self.retry._asdict(),
            "max_crashes": self.max_crashes,
        }
        return own | self.follow._asdict()


def limits_of(job: Job, settings: Settings) -> list[Limits]:
    """For each pool that takes the job; its own `max_attempts` comes before the pool's."""
    return [
        Limits(pool.name, pool.timeout_of(job.type), retry, follow, pool.max_crashes)
        for pool in able(settings.pools.values(), job.type, job.requires, job.priority)
        for policy in [pool.policy.retry_of(job.type)]
        for retry in [policy._replace(max_attempts=policy.attempts_for(job.max_attempts))]
        for follow in [pool.policy.follow_ups.get(job.type, FollowUps())]
    ]


def in_words(limits: list[Limits]) -> str:
    """One sentence, or one for each pool if they differ; empty for no pool."""
    said = {one.pool: _in_words(one) for one in limits}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"in {pool}: {what}" for pool, what in said.items())


def _in_words(limits: Limits) -> str:
    retry = limits.retry
    pause = f" of {human(retry.base)}" if retry.backoff == "fixed" else f", {human(retry.base)} to {human(retry.max)}"
    parts = [
        f"{human(limits.timeout)} a run",
        counted(retry.max_attempts, "attempt"),
        f"{retry.backoff} backoff{pause}" if retry.max_attempts > 1 else "",
        f"gives up on {', '.join(retry.give_up_on)}" if retry.give_up_on else "",
        f"other limits after {', '.join(retry.on)}" if retry.on else "",
        *(f"{name} {type_}" for name, type_ in limits.follow._asdict().items() if type_),
    ]
    return ", ".join(part for part in parts if part)
