"""Why a job does not run: the one place that decides it, from the job's row and what is known besides. Pure.

`jobs why` and `jobs show`, the page of a job, the HTTP API, `Queue.why`, the notes of `logs --follow`, the hints of
those who waited in vain, and the refusals of `POST /run` say what is found here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from supervisor.domain.job import EXPIRED, UNKNOWN, Held, Job, Reason, Status
from supervisor.domain.memory_division import FOR_MEMORY
from supervisor.domain.text import counted, human, text_of, utc
from supervisor.ops import diagnosis
from supervisor.ops.diagnosis import able, of_supervisor
from supervisor.ops.views import COUNT_LIMIT, Finding, PoolView, Present, WorkerView, several_hosts
from supervisor.store.base import WorkerRecord

_MOST = 5  # jobs, and pools, named in one sentence
_SHORT = 300  # characters of an error
_BEFORE = re.compile(r"cancelled: job (\d{1,19}), before it, ended (\w+)$")
_NEWER = re.compile(r"(?:replaced|superseded) by job (\d{1,19})\b")


def reasons(
    job: Job,
    now: float,
    present: Present,
    *,
    worker: WorkerRecord | None = None,
    held: Held | None = None,
    ahead: tuple[int, float] | None = None,
    twin: int | None = None,
) -> list[Reason]:
    """What keeps a job from running, first what must change first; of one that runs or has ended, how. Never empty.

    `worker` has claimed it; `ahead` is how many due jobs its pools claim before it, counted up to COUNT_LIMIT, and how
    many of them a second; `twin` is the unfinished job that has its unique key; `now` is Unix seconds.
    """
    numbers: tuple[object, ...] = (job.priority, job.scheduled_at)  # any program may have written the row
    known = all(isinstance(number, (int, float)) for number in numbers)
    if not known or (job.last_error or "").endswith(UNKNOWN):
        wrong = "its priority or its time is no number" if not known else job.last_error
        return [Reason("unreadable", f"its row cannot be read: {wrong}", "correct the row, or delete it")]
    if job.status.finished:
        return [*_ended(job, now, twin)]
    if job.status is Status.RUNNING:
        return [*_running(job, now, present, worker)]
    held = held or Held("")
    found = [_held(job, held, now, present)] if job.status is Status.HELD else []
    if not found and job.scheduled_at > now:
        found = [_admitted(job, held, now) if held.gate else _not_due(job, now)]
    if held.expires_at is not None and held.expires_at <= now:
        found = [Reason("expired", f"it expired at {_when(held.expires_at, now)}, and a supervisor has to cancel it")]
    kept = obstacles(job.type, job.requires, job.priority, present, now)
    found += [Reason(each.name, each.fact, each.advice) for each in kept[:_MOST]]
    return found or [_waiting(free(job, present, now), present, ahead)]


def obstacles(type_: str, requires: str, priority: int, present: Present, now: float) -> list[Finding]:
    """What keeps such a job, once it is due, from being claimed: a paused type, and that there is no pool for it or
    what keeps each of its pools from running any job. Empty if one may run it.
    """
    found = [diagnosis.type_paused(type_)] if type_ in present.paused else []
    living = [one for one in present.supervisors if one.alive is not False]
    if not living:
        return [*found, diagnosis.no_supervisor()]
    pools = able(present.pools, type_, requires, priority)
    kept = [_obstacle(pool, present, now) for pool in pools]
    if None in kept:
        return found
    if unseen := [one for one in living if not one.visible]:  # a pool of theirs may take it
        several = several_hosts(present.supervisors)
        about = (each for one in unseen for each in of_supervisor(one, several, now, unseen=True))
        return [*found, *(each for each in about if each.name == "not_visible")]
    if not pools:
        known = {each for pool in present.pools for each in pool.types}
        lacks = diagnosis.lacking(type_, requires, priority, present.pools)
        return [*found, lacks or diagnosis.unhandled(text_of(type_), known)]
    return [*found, *dict.fromkeys(filter(None, kept))]


def free(job: Job, present: Present, now: float) -> list[PoolView]:
    """The pools that would run it."""
    pools = able(present.pools, job.type, job.requires, job.priority)
    return [pool for pool in pools if _obstacle(pool, present, now) is None]


def _obstacle(pool: PoolView, present: Present, now: float) -> Finding | None:
    """What keeps a pool from running any job."""
    several = several_hosts(present.supervisors)
    owners = (one for one in present.supervisors if (one.pid, one.host) == (pool.supervisor, pool.host) and one.visible)
    found = [each for one in owners for each in of_supervisor(one, several, now, unseen=False)]
    # A broken pool may still have workers; and with the target 0, nobody tries to start one before a job comes.
    if not (pool.broken and (not pool.target or ready([pool], present))):
        found += diagnosis.of_pool(pool, several)
    return next((each for each in found if each.blocks), None)


def ready(pools: Sequence[PoolView], present: Present) -> list[WorkerView]:
    """The workers of these pools that have been set up."""
    ours = {(pool.name, pool.supervisor, pool.host) for pool in pools}
    return [one for one in present.workers if (one.pool, one.supervisor, one.host) in ours and one.state != "starting"]


def _waiting(pools: Sequence[PoolView], present: Present, ahead: tuple[int, float] | None) -> Reason:
    """What a job waits for that nothing keeps from running."""
    if not ready(pools, present):
        pool = max(pools, key=lambda pool: pool.target)
        who = f"{diagnosis.named(pool, several_hosts(present.supervisors))} has no worker"
        if pool.target == 0 and pool.fixed is not None:
            advice = f"`supervisor scale {pool.name} auto` returns it to the size of the configuration"
            return Reason("no_worker", f"{who}: {pool.why}", advice)
        if not pool.size and pool.why.startswith(FOR_MEMORY):
            return Reason("memory", f"{who}: {pool.why}")
        return Reason("starting", f"{who} that is ready yet, and is starting one")
    who = " or ".join(dict.fromkeys(pool.name for pool in pools[:_MOST]))
    jobs, rate = ahead or (0, 0.0)
    if not jobs:
        return _next(f"it is the next job for the pool {who}", pools, present)
    before = f"{jobs}{'+' if jobs >= COUNT_LIMIT else ''} {'job is' if jobs == 1 else 'jobs are'} before it"
    soon = f"; at {rate:.3g} a second, it starts in about {human(jobs / rate)}" if rate else ""
    return Reason("behind", f"{before} in the pool {who}{soon}")


def _next(text: str, pools: Sequence[PoolView], present: Present) -> Reason:
    """Of the job that the next free worker runs: with those that run now, if they are few."""
    workers = ready(pools, present)
    jobs = tuple(one.job for one in workers if one.job and one.running <= 1)
    if len(workers) > 2 or len(jobs) < len(workers):
        return Reason("next", f"{text}, once a worker is free")
    names = " and ".join(one.name for one in workers)
    who = f"only worker, {names}, has" if len(jobs) == 1 else f"workers {names} have"
    times = [human(one.running_for or 0.0) for one in workers]
    runs = [f"job {job} ({present.types.get(job, '?')}) for {time}" for job, time in zip(jobs, times, strict=True)]
    fixed = len(pools) == 1 and (pools[0].fixed or pools[0].max_workers) <= pools[0].size
    advice = f"wait, or `supervisor scale {pools[0].name} {pools[0].size + 1}`" if fixed else ""
    return Reason("next", f"{text}, whose {who} been running {' and '.join(runs)}", advice, jobs=jobs)


def _not_due(job: Job, now: float) -> Reason:
    at, tries = _when(job.scheduled_at, now), _tries(job)
    text = f"it is not due until {at}; "
    text += "it was enqueued for then" if job.started_at is None else "its last run has put it off"
    if tries:
        tries = tries if job.crashes > 0 else f"; attempt {job.attempts} failed"
        text = f"attempt {job.attempts + 1} is due at {at}{tries}{_error(job)}"
    return Reason("not_due", text, until=job.scheduled_at)


def _held(job: Job, held: Held, now: float, present: Present) -> Reason:
    if held.gate == "due" and job.scheduled_at > now:
        return _not_due(job, now)
    if held.gate == "after" and held.predecessors:
        text = f"it waits for {_jobs(held.predecessors, held.total)} to end"
        return Reason("held_after", text, _look_at(held.predecessors), jobs=held.predecessors)
    by_hand = f"`supervisor jobs run-now {job.id}` lets it run"
    if held.gate == "after":
        return Reason("held_after", "it waits for other jobs to end, and the table job_after names none", by_hand)
    if held.gate == "due":
        return Reason("held", "it is due, and a supervisor has to let it through")
    if held.gate not in ("key", "type") or (held.gate == "key" and not held.key):
        return Reason("held", "it is held, and its row does not say why", by_hand)
    return _at_gate(job, held, now, present)


def _at_gate(job: Job, held: Held, now: float, present: Present) -> Reason:
    """Of one whose key or type has no room."""
    who, next_at = _whose(job, held), held.next_at if held.next_at is not None and held.next_at > now else None
    code, text, jobs = f"held_{held.gate}", f"{who} has no room", held.running
    advice = _look_at(jobs)
    total = len(jobs) if held.total is None else held.total
    if held.failures:
        since = f", from {_when(next_at, now)} on" if next_at else ""
        code, text = "breaker", f"{_broken(job, held)}; one job at a time may start{since}, until one succeeds"
    elif total and held.limit is not None and total >= held.limit:
        text += f": {_beside(held, total, now, present)}"
    elif held.rate:
        code, text = "rate", f"{who} is limited to {held.rate}"
        at = f" at {_when(next_at, now)}" if next_at else ""
        if total == 1 and held.since is None:  # it is let through, and has not started
            text += f"; job {jobs[0]} starts next{at and ',' + at}"
        else:  # which of several is the next is not known
            text, advice = f"{text}; the next job {f'may start{at}' if at else 'starts soon'}", ""
    elif next_at:
        code, text = "rate", _closed(job, held, _when(next_at, now))
    elif held.limit is None or held.limit > 0:
        text = f"{who} has room, and a supervisor has to let it through"
    if held.ahead:
        text += f"; {counted(held.ahead, 'other job waits', 'other jobs wait')} there before this one"
    return Reason(code, text, advice, next_at, jobs)


def _admitted(job: Job, held: Held, now: float) -> Reason:
    """Of one that has passed its gates and may start at a later time, which they have set."""
    until = _when(job.scheduled_at, now)
    if held.failures:
        return Reason("breaker", f"{_broken(job, held)}; this job starts first, at {until}", until=job.scheduled_at)
    text = f"{_whose(job, held)} is limited to {held.rate}; this job is the next, and may start at {until}"
    if not held.rate:
        text = _closed(job, held, until)
    return Reason("rate", text, until=job.scheduled_at)


def _closed(job: Job, held: Held, until: str) -> str:
    """Without a rate, nothing else sets such a time: Retry(whole_key=True)."""
    return f"{_whose(job, held)} is closed until {until}, as a job has asked with `whole_key`"


def _whose(job: Job, held: Held) -> str:
    return f"its concurrency key {text_of(held.key or '')}" if held.gate == "key" else f"the type {text_of(job.type)}"


def _broken(job: Job, held: Held) -> str:
    attempts = counted(held.failures, "attempt has", "attempts in a row have")
    return f"the breaker of the type {text_of(job.type)} is open, since {attempts} failed"


def _beside(held: Held, total: int, now: float, present: Present) -> str:
    """The jobs that have the room."""
    if total > 1 or not held.running:
        return f"{_jobs(held.running, total)} run or may start, of at most {held.limit}"
    worker = next((one for one in present.workers if one.job == held.running[0]), None)
    if worker is not None:
        return f"job {worker.job} has been running in {worker.name} for {human(worker.running_for or 0.0)}"
    if held.since is None:
        return f"job {held.running[0]} comes first, and has not started yet"
    return f"job {held.running[0]} has been running for {human(max(0.0, now - held.since))}"


def _jobs(ids: Sequence[int], total: int | None) -> str:
    """How many there are, and the first ones."""
    count, first = len(ids) if total is None else total, ids[:_MOST]
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"{counted(count, 'job')}" + (f" ({', '.join(map(str, first))}{more})" if first else "") if count else ""


def _look_at(jobs: Sequence[int]) -> str:
    return f"`supervisor jobs why {jobs[0]}` says what job {jobs[0]} is doing" if jobs else ""


def _running(job: Job, now: float, present: Present, worker: WorkerRecord | None) -> Iterator[Reason]:
    expires = f"its lock ends at {_when(job.lock_expires_at, now)}"
    if job.locked_by == "foreign":
        advice = "unless that program settles it by then, it returns to the queue"
        yield Reason("foreign", f"another program has claimed it; {expires}", advice, job.lock_expires_at)
        return
    view = next((one for one in present.workers if one.job == job.id), None)
    name = view.name if view is not None else "" if worker is None else text_of(worker.name)
    gone = [one for one in present.supervisors if worker and one.id == worker.supervisor and one.alive is False]
    began = job.started_at if isinstance(job.started_at, (int, float)) and math.isfinite(job.started_at) else now
    if gone or not name:
        fact = f"claimed it at {_when(job.started_at, now)}, and is gone"
        yield Reason("lost", f"{name or 'a worker that is no longer known'} {fact}; {expires}")
    else:
        done, said = (job.progress, job.progress_text) if view is None else (view.progress, view.text)
        shown = "" if done is None else f", {done:.0%} {text_of(said or '')}".rstrip()
        limit = f"; its time limit is {human(view.time_limit)}" if view is not None and view.time_limit else ""
        stop = "; it was asked to stop" if job.cancel_requested_at else ""
        since = f"for {human(max(0.0, now - began))}, since {utc(began)}"
        text = f"it has been running in {name} {since}{shown}{limit}{stop}"
        advice = f"`supervisor logs {job.id} -f` shows its output"
        yield Reason("running", text, advice if stop else f"{advice}, `supervisor jobs cancel {job.id}` stops it")
    for one in gone:
        for found in of_supervisor(one, several_hosts(present.supervisors), now, unseen=False):
            yield Reason(found.name, found.fact, found.advice)


def _ended(job: Job, now: float, twin: int | None) -> Iterator[Reason]:
    when, error, cause = "at " + _when(job.completed_at, now), job.last_error or "", _BEFORE.match(job.last_error or "")
    retry = f"`supervisor jobs retry {job.id}` runs it again"
    if job.status is Status.DONE:
        yield Reason("done", f"it finished {when}")
        return
    if job.status is Status.CANCELLED and error == EXPIRED:
        yield Reason("expired", f"it expired {when}: it had not started in time", "enqueue it again")
        return
    newer = twin or next((int(found[1]) for found in [_NEWER.match(error)] if found), None)
    if newer is not None:
        retry = f"once job {newer} has ended, {retry}"
    if job.status is Status.CANCELLED and cause is not None:
        text = f"it was cancelled {when}: it was to run after job {cause[1]}, which ended {cause[2]}"
        advice = f"`supervisor jobs retry {cause[1]}` has it wait again; {retry} without that"
        yield Reason("cancelled", text, advice, jobs=(int(cause[1]),))
    else:
        ways = {Status.FAILED: "it failed", Status.CANCELLED: "it was cancelled"}
        how = f"{ways.get(job.status, 'it was quarantined')} {when}{_tries(job)}"
        ends = f"{_error(job, ' ({})')}, and will not run again by itself"
        how += ends if job.status is Status.QUARANTINED else _error(job)
        yield Reason(job.status.value, how, retry, jobs=() if newer is None else (newer,))
    if twin is not None:
        yield Reason("unique", f"job {twin}, which has not ended, has its unique key", _look_at((twin,)), jobs=(twin,))


def _tries(job: Job) -> str:
    """How often it was tried."""
    tried = [counted(job.attempts, "attempt")] if job.attempts > 0 else []
    tried += [counted(job.crashes, "crash", "crashes")] if job.crashes > 0 else []
    return f", after {' and '.join(tried)}" if tried else ""


def _error(job: Job, form: str = ": {}") -> str:
    return form.format(text_of(job.last_error.strip(), _SHORT)) if job.last_error else ""


def _when(at: object, now: float) -> str:
    """A time, and how long that is from now. Any program may have written it."""
    if not isinstance(at, (int, float)) or not math.isfinite(at):
        return "a time that is not known" if at is None else text_of(at)
    return f"{utc(at)}, {f'in {human(at - now)}' if at > now else f'{human(now - at)} ago'}"
