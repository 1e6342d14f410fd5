"""The operators' commands and the rules for refusing them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from supervisor.config.checks import host_pattern
from supervisor.config.limits import LIMITS, contradiction, limits_of, written
from supervisor.config.problems import Report, checked, dotted
from supervisor.domain.errors import ConfigError, Conflict, JobNotFound
from supervisor.domain.job import EXPIRED, Status
from supervisor.domain.limits import Limits
from supervisor.domain.text import counted, like, no_pool, not_retried, text_of
from supervisor.domain.values import checked_type
from supervisor.ops.supervisors import Seen, Unknown, living, pools_of, require_host, seen, types_taken
from supervisor.store.base import Filter, LimitView, Operations, Planned, Retried, SupervisorRecord, decoded
from supervisor.system.scoreboard import MAX_SLOTS

MOST_WORKERS = MAX_SLOTS - 1
MANY_WORKERS = 100  # a larger number is probably a typing error: it must be confirmed
_LEFT = 3600.0  # seconds after which a late schedule is of no configuration any more
_LOOK_EVERY = 0.1  # seconds between two reads of the supervisors' status
_MOST_COMPARED = 2000  # names that are compared to find similar ones
Change = Literal["retry", "cancel", "delete"]
"""What may be done to many jobs at once."""

UNSUCCESSFUL = (Status.FAILED, Status.QUARANTINED)
RETRIABLE = (*UNSUCCESSFUL, Status.CANCELLED)
CANCELLABLE = tuple(status for status in Status if not status.finished)
DELETABLE = tuple(status for status in Status if status.finished)

# For each change: the states that allow it, those it applies to by default, and the rule in words.
_CHANGES: dict[Change, tuple[tuple[Status, ...], tuple[Status, ...], str]] = {
    "retry": (RETRIABLE, UNSUCCESSFUL, "a failed, quarantined or cancelled job can be retried"),
    "cancel": (CANCELLABLE, CANCELLABLE, "an unfinished job can be cancelled"),
    "delete": (DELETABLE, DELETABLE, "a finished job can be deleted; cancel it first"),
}


def check(
    operations: Operations, what: Change, ids: Iterable[int], *, done: bool = False, option: str = "done"
) -> None:
    """Raises JobNotFound or Conflict for the first of these jobs that cannot be changed so; with `done`, those that
    have succeeded can. The message calls that `option`.
    """
    allowed, _, rule = _CHANGES[what]
    for job_id in ids:
        job = operations.jobs.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.status not in allowed and not (done and job.status is Status.DONE):
            if what == "retry" and job.status is Status.DONE:
                rule = f"with `{option}` it runs again, and its result is deleted"
            raise Conflict(f"job {job_id} is {job.status}; only {rule}")
        if what == "retry" and job.status is Status.CANCELLED and job.last_error == EXPIRED:
            raise Conflict(f"job {job_id} has expired, and would expire again; enqueue it again")


def retry(operations: Operations, ids: Sequence[int], now: float, *, done: bool = False) -> Retried:
    """Retry these jobs, with `done` also those that have succeeded. Not all of them may be changed: see
    `require_all`.
    """
    if not done:
        return operations.actions.retry(ids, now)
    each = [operations.actions.rerun(job_id, now, payload=None, done=True) for job_id in ids]
    return Retried(sum(one.changed for one in each), {job: of for one in each for job, of in one.duplicates.items()})


def require_all(ids: Sequence[int], retried: Retried) -> None:
    """Raises Conflict if not all of these jobs were retried."""
    if retried.changed < len(ids):
        duplicate_of = retried.duplicates.get(ids[0]) if len(ids) == 1 else None
        raise Conflict(not_retried(ids, retried.changed, retried.duplicates), duplicate_of=duplicate_of)


def rerun(operations: Operations, job_id: int, now: float, *, payload: str | None = None, done: bool = False) -> None:
    """Retry one job with another payload (JSON text; None: its own), and with `done` even if it has succeeded.

    Raises JobNotFound, and Conflict if it was not changed.
    """
    check(operations, "retry", [job_id], done=done)
    require_all([job_id], operations.actions.rerun(job_id, now, payload=payload, done=done))


def run_now(operations: Operations, job_id: int, now: float) -> None:
    """Let a job run that waits, whatever its gates and its time. Raises JobNotFound, and Conflict if it does not."""
    job = operations.jobs.get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    held = operations.jobs.held(job)
    expired = held is not None and held.expires_at is not None and held.expires_at <= now
    if expired or (job.status is Status.CANCELLED and job.last_error == EXPIRED):
        raise Conflict(f"job {job_id} has expired; enqueue it again")
    if not operations.actions.run_now(job_id, now):
        advice = "; retry it" if job.status in RETRIABLE else ""
        raise Conflict(f"job {job_id} is {job.status}; only a job that waits can be run now{advice}")


def meant(change: Change, which: Filter) -> Filter:
    """The filter for a bulk change. Raises ConfigError for a state that does not allow the change.

    Without a state, `retry` applies to failed and quarantined jobs, not to those that were cancelled on purpose.
    """
    possible, usual, _ = _CHANGES[change]
    for status in which.statuses:
        if status not in possible:
            raise ConfigError(
                [f"status: {change} does not apply to {status} jobs; it applies to {', '.join(possible)}"]
            )
    return which._replace(statuses=which.statuses or usual)


def change(operations: Operations, what: Change, ids: Sequence[int], now: float) -> tuple[int, int]:
    """Change those of these jobs whose state allows it. Returns how many were changed, and how many could not be
    retried because unfinished jobs have their unique keys.
    """
    if what == "retry":
        retried = operations.actions.retry(ids, now)
        return retried.changed, len(retried.duplicates)
    return operations.actions.cancel_all(ids, now) if what == "cancel" else operations.actions.delete(ids), 0


def scale(
    operations: Operations, pool: str, workers: int | None, configured: Iterable[str], now: float, *, host: str = ""
) -> None:
    """Fix a pool's size, or return it to automatic scaling with None: everywhere, in the place of what was set for
    single hosts, or where the host's name matches `host`, where None returns it to what holds everywhere.

    Raises the errors of `check_scale`, and Unknown.
    """
    check_scale(operations, pool, workers, configured)
    try:
        if host and not (workers is None and host in operations.controls.current().hosts_of(pool)):
            require_host(operations, host_pattern(host), pool)
    except ValueError as error:
        raise ConfigError([f"host: {error}"]) from None
    operations.controls.scale(pool, workers, now, host)


def scaled(pool: str, workers: int | None) -> str:
    """That the pool has this size now; None: the one that the configuration leads to."""
    if workers is None:
        return f"pool {pool} is sized by the configuration again"
    return f"pool {pool} now has {counted(workers, 'worker')}"


def check_scale(operations: Operations, pool: str, workers: int | None, configured: Iterable[str]) -> None:
    """Raises ConfigError for a size out of range, and Unknown for a pool that neither the configuration nor a
    running supervisor has, if any pools are known.
    """
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise ConfigError([f"{workers} is not a valid number of workers; it must be from 0 to {MOST_WORKERS}"])
    known = {*configured, *(name for name, _ in pools_of(operations))}
    # A pool that is no longer known may still have a fixed size, which can be removed.
    controls = operations.controls.current()
    stale = workers is None and (pool in controls.sizes or controls.hosts_of(pool))
    if known and pool not in known and not stale:
        raise Unknown([no_pool(pool, sorted(known))])


def pause(
    operations: Operations, type_: str, paused: bool, now: float, *, configured: Iterable[str] = (), force: bool = False
) -> bool:
    """Pause or resume a type. Returns whether that is a change.

    Raises InvalidJob, and Unknown for a type to pause that no configuration, pool or job has: it is probably mistyped,
    and the intended type would keep running. `force` pauses it anyway, for future jobs.
    """
    checked_type(type_)
    if not paused:
        return operations.controls.resume(type_)
    if type_ in operations.controls.current().paused:
        return False
    if not force:
        _require_type(operations, type_, configured)
    operations.controls.pause(type_, now)
    return True


def _require_type(operations: Operations, type_: str, configured: Iterable[str]) -> None:
    known = {*configured, *types_taken(operations)}
    if type_ not in known and not operations.jobs.latest(status=None, type=type_, before=None, limit=1):
        known.update(name for name, _, _ in operations.statistics.open_counts() if isinstance(name, str))
        near = like(type_, sorted(known)[:_MOST_COMPARED])
        raise Unknown([f"no pool takes the type {type_!r}, and no job has it{near}"])


def limits(operations: Operations) -> list[dict[str, Any]]:
    """The limits of every type that has any, with the keys and values of the configuration."""
    return [_limits(view) for view in operations.gates.limits()]


def limits_of_type(operations: Operations, type_: str, configured: Iterable[str]) -> dict[str, Any]:
    """Those of one. Raises Unknown as `pause` does."""
    found = [view for view in operations.gates.limits() if view.type == type_]
    if not found:
        _require_type(operations, type_, configured)
    return _limits(*found or [LimitView(type_, Limits(), False)])


def _limits(view: LimitView) -> dict[str, Any]:
    return {"type": text_of(view.type), "limits": written(view.limits), "chosen": view.chosen}


def limit(
    operations: Operations,
    type_: str,
    values: Mapping[str, Any],
    now: float,
    *,
    configured: Iterable[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Change these limits of a type, with the keys and values of the configuration; None takes a limit away. They hold
    at once, whatever the configuration says, until `reset_limits`. Returns those that it has now.

    Raises InvalidJob, Unknown as `pause` does, and ConfigError.
    """
    checked_type(type_)
    report = Report()
    given = checked(LIMITS, {key: value for key, value in values.items() if value is not None}, (), report)
    problems = [f"{dotted(problem.at)}: {problem.text}" for problem in report.problems]
    if problems or not values:
        raise ConfigError(problems or ["give at least one limit"])
    found = next((view.limits for view in operations.gates.limits() if view.type == type_), None)
    if not force and found is None:
        _require_type(operations, type_, configured)
    chosen = limits_of({key: given.get(key) for key in values}, found or Limits())
    wrong = contradiction(chosen)
    if chosen.needs_room:  # the configuration knows how many the pools can run
        key = "fair" if chosen.fair else "age_boost"
        wrong = key, "it has an effect only if few jobs are admitted at a time: set max_running, too"
    if wrong is not None:
        raise ConfigError([": ".join(wrong)])
    operations.gates.choose(type_, chosen, now)
    return limits_of_type(operations, type_, [type_])


def reset_limits(
    operations: Operations, type_: str, configured: Mapping[str, Limits], now: float, types: Iterable[str] = ()
) -> dict[str, Any]:
    """Let the limits of a type be the configured ones again. Returns them. Raises as `pause` does."""
    checked_type(type_)
    limits_of_type(operations, type_, {*configured, *types})
    operations.gates.choose(type_, configured.get(type_), now, chosen=False)
    return limits_of_type(operations, type_, [type_])


def pause_pool(operations: Operations, pool: str, paused: bool, now: float) -> None:
    """Pause or resume all types of a pool. Raises Unknown if no running supervisor has it."""
    types = types_taken(operations, pool)
    if not types:
        raise Unknown([f"no running supervisor has a pool {pool!r}"])
    for type_ in types:
        pause(operations, type_, paused, now, force=True)


def pause_schedule(operations: Operations, name: str, paused: bool, now: float) -> bool:
    """Pause or resume a schedule. Returns whether that is a change. Raises Unknown.

    The times that a resumed one has missed are handled according to its `misfire`.
    """
    _schedule(operations, name)
    return operations.schedules.pause(name, now) if paused else operations.schedules.resume(name, now)


def run_schedule(operations: Operations, name: str, now: float) -> int:
    """Enqueue the job of a schedule now, also of a paused one, and return its id.

    Raises Unknown, and Conflict if it is not known what the schedule enqueues.
    """
    _schedule(operations, name)
    job_id = operations.schedules.run(name, now)
    if job_id is None:
        raise Conflict(f"what the schedule {name} enqueues is known only when a supervisor that has it has run")
    return job_id


def set_schedule(
    operations: Operations, name: str, keys: Mapping[str, object], now: float, mode: Literal["add", "change", "set"]
) -> bool:
    """Make a schedule at run time of these keys of `[[schedules]]`, or replace one that was. "add" refuses to replace,
    "change" to make one; it keeps the keys that are not given. None removes a key. Returns whether this is a change.

    Raises InvalidJob, Unknown and Conflict.
    """
    from supervisor.config.reader import schedule_of

    planned = _schedule(operations, name) if mode == "change" else operations.schedules.one(name)
    _require_ours(operations, planned, now)
    if planned is not None and mode == "add":
        raise Conflict(f"there is a schedule {name} already; change or remove it")
    before = None if planned is None else planned.definition or ""
    found = decoded(before) if mode == "change" else None
    kept = found if isinstance(found, dict) else {}
    for key in ("cron", "timezone") if keys.get("every") else ("every",) if keys.get("cron") else ():
        kept.pop(key, None)
    given = {key: value for key, value in {**kept, **keys}.items() if value is not None}
    schedule = schedule_of(name, given)
    definition = json.dumps(given, sort_keys=True)
    if definition == before:
        return False
    wanted = Planned(next_at=schedule.first(now), definition=definition, **schedule.columns(now))
    # Somebody else may have been faster.
    return operations.schedules.define(wanted, before, now) or set_schedule(operations, name, keys, now, mode)


def remove_schedule(operations: Operations, name: str, now: float) -> None:
    """Remove one that was made at run time; its jobs stay. Raises Unknown and Conflict."""
    planned = _schedule(operations, name)
    _require_ours(operations, planned, now)
    if not operations.schedules.remove(name, planned.definition or "", now):
        raise Conflict(f"somebody else has changed the schedule {name} just now; try again")


def _require_ours(operations: Operations, planned: Planned | None, now: float) -> None:
    """Raises Conflict for a schedule that a configuration has, or may have: one that is not an hour late although a
    supervisor runs.
    """
    if planned is not None and planned.definition is None:
        left = planned.paused_at is None and planned.next_at < now - _LEFT and living(operations)
        if not left:
            raise Conflict(f"the schedule {planned.name} is in a configuration file; change it there, and reload")


def _schedule(operations: Operations, name: str) -> Planned:
    schedules = {planned.name: planned for planned in operations.schedules.planned()}
    if name not in schedules:
        known = f"; the schedules are {', '.join(sorted(map(text_of, schedules)))}" if schedules else ""
        raise Unknown([f"there is no schedule {name!r}{known}"])
    return schedules[name]


def reload(operations: Operations, now: float) -> list[SupervisorRecord]:
    """Ask every running supervisor to reload, and return them.

    Raises Conflict if there is none, and ConfigError if a configuration to be read is invalid: the supervisor would
    keep the old one and report that only in its log.
    """
    supervisors = living(operations)
    if not supervisors:
        raise Conflict("no supervisor is running on this database, so there is nothing to reload")
    from supervisor.config import load

    problems: list[str] = []
    here = {one.record.config for one in seen(operations) if one.local or one.lease is None}
    for path in sorted(here & {record.config for record in supervisors}):
        with suppress(PermissionError):
            try:
                load(Path(path))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    operations.controls.request_reload(now)
    return supervisors


def await_reload(
    operations: Operations, asked: Iterable[SupervisorRecord], seconds: float | None = None
) -> dict[str, dict[str, Any]]:
    """The results of the last requested reload by the supervisor's id: `state` is accepted, refused, failed or gone,
    `problems` says why, `pools` has the state of each, and `canaries` names those whose canary has passed. Waits for
    all results, or for some `seconds`; a set-up takes startup_timeout at most.
    """
    number = operations.controls.current().reloads
    outcomes: dict[str, dict[str, Any]] = {}
    left = {record.id for record in asked}
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        there = {one.record.id: one for one in seen(operations)}
        found = {one: outcome for one in left if (outcome := _reload_outcome(there.get(one), number)) is not None}
        outcomes |= found
        left -= found.keys()
        if not left or time.monotonic() >= until:
            return outcomes
        time.sleep(_LOOK_EVERY)


def _reload_outcome(one: Seen | None, number: int) -> dict[str, Any] | None:
    """None while the result is not known."""
    if one is None or one.status is None:
        problem = "it has ended, or its scoreboard cannot be read"
        return {"state": "gone", "problems": [problem], "pools": {}, "canaries": []}
    news = one.status.get("reload") or {}
    if (news.get("number") or 0) < number or news["state"] == "running":
        return None
    return {"canaries": []} | {key: news[key] for key in ("state", "problems", "pools", "canaries") if key in news}
