"""What is wrong with a running system, decided once: `status`, `top`, `doctor`, the dashboard and `/readyz` show it.

A fact begins with a word, never with a name, so that a page can capitalize it. What alerts tell of pools and schedules
`maintenance/alerts.py` decides, from the same values: `broken` of a pool, and GRACE of a schedule.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from supervisor.domain.job import covers, high_enough
from supervisor.domain.text import counted, human, human_size, text_of, untaken
from supervisor.ops.views import MOST_FAILURES, Finding, Level, Overview, PoolView, SupervisorView
from supervisor.store.base import ServerView

_LEVELS: tuple[Level, ...] = ("fault", "warning", "note", "ok")
_MOST_ALONE = 3  # types without a pool that get a finding each; more are named in one
_MOST_NAMED = 20  # types in one finding
_MANY_DEAD = 50_000  # dead rows, of which a person should know
_QUEUE_FULL = 0.25  # part of the queue of notifications
_SHORT = 120  # characters of an error
LATELY = 3600.0  # seconds
_FIX_IT = "fix the cause, then run `supervisor reload`; the set-up is also retried automatically"
_VERSION: str = sys.modules["supervisor"].__version__  # the package that this is in


good, note, warning, fault = (partial(Finding, level) for level in ("ok", "note", "warning", "fault"))


class Taker(Protocol):
    """A pool, of a running supervisor or of a configuration."""

    @property
    def types(self) -> Sequence[str]: ...
    @property
    def capabilities(self) -> Sequence[str]: ...
    @property
    def min_priority(self) -> int | None: ...


Named = TypeVar("Named", bound=Taker)


def unmet(waiting: Iterable[tuple[str, str, int]], takers: Iterable[Taker]) -> list[Finding]:
    """Jobs, given as (type, requires, priority), that no pool for their type takes, because of what they require or of
    their priority: each reason once.
    """
    there = list(takers)
    found = (lacking(*each, there) for each in waiting)
    return list(dict.fromkeys(each for each in found if each is not None))


def lacking(type_: str, requires: str, priority: int, takers: Iterable[Taker]) -> Finding | None:
    """The same for such a job; None if one of the pools takes it, or none its type."""
    pools = [taker for taker in takers if type_ in taker.types]
    bounds = [pool.min_priority for pool in pools if covers(" ".join(pool.capabilities), requires)]
    if not pools or any(high_enough(priority, bound) for bound in bounds):
        return None
    who, needs = f"no pool that takes {text_of(type_)}", text_of(requires)
    if not bounds:
        fact = f"{who} has the capabilities that some of its jobs require: {needs}"
        return warning("jobs", fact, "give a pool the capabilities and reload, or cancel the jobs", "capabilities")
    having = f" and has {needs}" if needs else ""
    least = min(bound for bound in bounds if bound is not None)
    advice = "give a pool a lower min_priority and reload, or cancel the jobs"
    return warning("jobs", f"{who}{having} takes jobs below priority {least}, and some wait", advice, "priority")


def able(takers: Iterable[Named], type_: str, requires: str, priority: int) -> list[Named]:
    """Those that take such a job."""
    return [each for each in takers if type_ in each.types and lacking(type_, requires, priority, [each]) is None]


def diagnose(seen: Overview) -> list[Finding]:
    """Everything that is wrong or unusual at one moment, the most serious first."""
    pools = (each for pool in seen.pools for each in of_pool(pool, seen.several_hosts))
    found = [*_of_supervisors(seen), *pools, *_of_server(seen.server), *_of_types(seen), *_of_schedules(seen)]
    return sorted(found, key=lambda finding: _LEVELS.index(finding.level))


def _of_supervisors(seen: Overview) -> Iterator[Finding]:
    living = [one for one in seen.supervisors if one.alive is not False]
    if not living:
        yield no_supervisor(seen.jobs.get("pending", 0) + seen.jobs.get("held", 0))
    several = seen.several_hosts
    for one in seen.supervisors:
        yield from of_supervisor(one, several, seen.time, unseen=not any(other.visible for other in living))
    for gone in seen.gone:
        if not gone.stopped and seen.time - gone.at < LATELY:  # an hour later, only `status` lists it
            ago = human(max(0.0, seen.time - gone.at))
            fact = f"supervisor {gone.pid} on {gone.host} ended unexpectedly, {ago} ago, and none runs there now"
            advice = "look at that host and start it again; its jobs have returned to the queue"
            yield note("hosts", fact, advice, "host_gone")


def no_supervisor(waiting: int = 0) -> Finding:
    advice = "`supervisor run` starts one" + (f"; {_jobs(waiting, 'waits', 'wait')} until then" if waiting else "")
    return fault("supervisors", "no supervisor is running", advice, "no_supervisor", blocks=True)


def of_supervisor(one: SupervisorView, several: bool, now: float, *, unseen: bool) -> Iterator[Finding]:
    """The findings about a supervisor. `several`: there is more than one host; `unseen`: no scoreboard of any
    supervisor can be read.
    """
    who = f"supervisor {one.pid} on {one.host}" if several else f"supervisor {one.pid}"
    if one.alive is False:
        since = -(one.lease_left or 0.0)
        fact = f"{who} has ended unexpectedly" + (f"; its lease ended {human(since)} ago" if since > 0 else "")
        yield note("leftovers", fact, "the next supervisor to start recovers its jobs", "ended")
    else:
        yield from _of_living(one, who, now, unseen=unseen)
        yield from _of_host(one, who)


def _of_living(one: SupervisorView, who: str, now: float, *, unseen: bool) -> Iterator[Finding]:
    def about(level: Level, name: str, fact: str, advice: str, *, blocks: bool = False) -> Finding:
        return Finding(level, "supervisors", f"{who}{fact}", advice, name, blocks, supervisor=one.id)

    if one.trouble:
        fact = f": the database cannot be used: {one.trouble}"
        yield about("fault", "database_trouble", fact, "its jobs wait until it can be used again", blocks=True)
    for duty in one.duties:
        fact = f": its duty {duty.name} has been failing for {human(max(0.0, now - duty.since))}: {duty.error}"
        yield about("fault", "duty_failing", fact, "it is retried automatically; other duties are not affected")
    if one.admin is not None and one.admin.problem:
        fact = f": its admin process is not available: {one.admin.problem}"
        yield about("warning", "admin_unavailable", fact, "it is retried every 10 s; jobs are not affected")
    if one.log_lost:
        fact = f": {human_size(one.log_lost)} of its log could not be written since it started"
        advice = "the reader of the log is gone, had stopped, or the disk was full; jobs are not affected"
        yield about("note", "log_lost", fact, advice)
    if one.memory is not None and one.memory.stated and one.memory.used > one.memory.budget:
        fact = f": its pools use {human_size(one.memory.used)}, and [machine] allows {human_size(one.memory.budget)}"
        yield about("warning", "memory_exceeded", fact, "raise `memory` in [machine], or use smaller models")
    if not one.visible:
        state = "is running" if one.alive else "may be running"  # on another host, for example
        fact = f" {state}, but its workers are not visible: its scoreboard cannot be read"
        advice = "look as the user of the service, and with its version of this program"
        yield about("warning", "not_visible", fact, advice, blocks=unseen)
    if one.stopping:
        fact = f" is stopping: {one.stopping}"
        yield about("note", "stopping", fact, "running jobs finish first; start it again afterwards", blocks=True)
    if one.version != _VERSION:
        fact = f" has version {one.version}, this is {_VERSION}"
        yield about("note", "other_version", fact, "restart it at a convenient time: running jobs can finish")


def _of_host(one: SupervisorView, who: str) -> Iterator[Finding]:
    """Why a living supervisor claims nothing."""
    if one.lease_left is not None and one.lease_left <= 0:
        fact = f"{who} cannot renew its lease: it claims nothing, and other hosts take over its jobs"
        advice = "look at its log, and at its connection to the server"
        yield fault("supervisors", fact, advice, "no_lease", blocks=True, supervisor=one.id)
    if one.drained:
        fact = f"{who} claims no jobs: its host is drained"
        advice = f"`supervisor undrain {one.host}` lets it claim jobs again"
        yield note("supervisors", fact, advice, "drained", blocks=True, supervisor=one.id)


def type_paused(type_: str, waits: str = "") -> Finding:
    fact = f"the type {type_} is paused{waits}"
    return note("jobs", fact, f"`supervisor resume {type_}` resumes it", "paused", type=type_)


def named(pool: PoolView, several: bool) -> str:
    return f"the pool {pool.name} of supervisor {pool.supervisor}" + (f" on {pool.host}" if several else "")


def of_pool(pool: PoolView, several: bool) -> Iterator[Finding]:
    """What is wrong with a pool. `several`: there is more than one host."""
    who = named(pool, several)
    if pool.problem and pool.broken:
        fact = f"{who} cannot start its workers: {pool.problem}"
        yield fault("pools", fact, _FIX_IT, "pool_broken", blocks=True)
    elif pool.problem:
        yield warning("pools", f"{who} works, but: {pool.problem}", _FIX_IT, "pool_problem")
    elif pool.why == "starting":
        fact = f"{who} has not been started yet: recovery is not complete"
        yield note("pools", fact, "no action needed", "pool_starting", blocks=True)


def _of_types(seen: Overview) -> Iterator[Finding]:
    pending = {view.type: view.jobs.get("pending", 0) for view in seen.types}

    def waits(type_: str) -> str:
        if not (known := pending.get(type_, 1)):
            return ""
        return ": " + (_jobs(known, "waits", "wait") if type_ in pending else "jobs wait")

    if seen.unhandled_types > _MOST_ALONE:
        # The types that are summed up have no pool: those with one come first.
        more = 0 if seen.other_types is None else seen.other_types.jobs.get("pending", 0)
        waiting = more + sum(pending[view.type] for view in seen.types if not view.handled)
        named = seen.unhandled[:_MOST_NAMED]
        rest = seen.unhandled_types - len(named)
        names = ", ".join(named) + (f" and {rest} more" if rest else "")
        fact = f"no pool takes {seen.unhandled_types} types: {names}; {_jobs(waiting, 'waits', 'wait')}"
        yield warning("jobs", fact, "add a pool for them and reload, or cancel their jobs", "unhandled")
    else:
        for type_ in seen.unhandled:
            yield unhandled(type_, {each for pool in seen.pools for each in pool.types}, waits(type_))
    yield from seen.unmet[:_MOST_NAMED]
    if quarantined := seen.jobs.get("quarantined", 0):
        them = "it" if quarantined == 1 else "them"
        fact = f"{_jobs(quarantined, 'is', 'are')} quarantined because workers died while running {them}"
        advice = "`supervisor jobs list --status quarantined` and `jobs show ID` show them; `jobs retry ID` retries one"
        yield warning("jobs", fact, advice, "quarantined")
    yield from (type_paused(type_, waits(type_)) for type_ in seen.paused)
    failed = [each for each in seen.causes if each.jobs and each.kind != "crash"]
    least = "at least " if sum(each.count for each in seen.causes) >= MOST_FAILURES else ""
    for each in sorted(failed, key=lambda each: -each.jobs)[:_MOST_ALONE]:
        fact = f"{counted(each.jobs, 'job')} of {each.type} failed in the last hour: {text_of(each.message, _SHORT)}"
        yield note("jobs", least + fact, "`supervisor jobs list --status failed` shows them", "failed", type=each.type)


def unhandled(type_: str, known: Iterable[str] = (), waits: str = "") -> Finding:
    """That no pool takes a type, how many jobs of it wait, and the one of these that is probably meant."""
    advice, fact = "add a pool for it and reload", untaken(type_, known, waits)
    near = "correct the type in the program that enqueues it, or " if fact.endswith("?") else ""
    return warning("jobs", fact, f"{near}{advice}, or cancel its jobs", "unhandled", type=type_)


def _of_schedules(seen: Overview) -> Iterator[Finding]:
    for schedule in seen.schedules:
        if schedule.paused_at is not None:
            fact = f"the schedule {schedule.name} is paused"
            advice = f"`supervisor schedules resume {schedule.name}` resumes it"
            yield note("schedules", fact, advice, "schedule_paused")
        elif seen.running and schedule.unfired:
            fact = f"the schedule {schedule.name} is {human(schedule.late)} late"
            yield warning("schedules", fact, "no running supervisor has this schedule", "schedule_late")
        elif schedule.silent:
            fact = f"no job of the schedule {schedule.name} has succeeded for {human(schedule.silent)}"
            advice = f"`supervisor jobs show {schedule.last_job}` shows its last job" if schedule.last_job else ""
            yield warning("schedules", fact, advice or "it has enqueued no job yet", "no_success")


def _of_server(server: ServerView | None) -> Iterator[Finding]:
    """What makes claims slower or keeps jobs of dead hosts waiting, with its cause."""
    if server is None:
        return
    advice = {
        "transaction": "end it, and set idle_in_transaction_session_timeout",
        "prepared transaction": "commit it or roll it back: COMMIT PREPARED, ROLLBACK PREPARED",
        "replication slot": "let its reader catch up, or drop the slot",
    }
    for one in server.keepers:
        if one.long:
            age = f"{one.transactions} transactions" if one.seconds is None else human(one.seconds)
            fact = f"dead rows cannot be removed, and claims become slower: {one.kind}, {age} old: {one.who}"
            yield warning("server", fact, advice.get(one.kind, "end it"), one.kind.replace(" ", "_"))
    for table in server.tables:
        if table.dead > _MANY_DEAD and table.dead > table.live:
            fact = f"the table {table.name} has {table.dead} dead rows beside {table.live} live ones"
            kept = "; they go when what keeps them has ended" if any(one.long for one in server.keepers) else ""
            if not (server.sees_all or kept):
                kept = "; transactions of other users are not visible to this one, without pg_read_all_stats"
            yield warning("server", fact, f"see whether autovacuum is on{kept}", "dead_rows")
    if server.notifications > _QUEUE_FULL:
        full = f"the queue of notifications is {server.notifications:.0%} full"
        fact = f"{full}: a session that listens is in a transaction"
        yield warning("server", fact, "end that transaction; when it is full, inserts fail", "notifications")
    if server.powerless:
        names = ", ".join(server.powerless)
        fact = f"hosts have users of their own, and {names} may not end the sessions of the others"
        grant = (
            f"let a superuser GRANT pg_signal_backend TO {names}, and let no host be a superuser: until then, "
            "jobs of a host that dies may return only when the server has ended its sessions"
        )
        yield warning("server", fact, grant, "powerless")


def _jobs(count: int, one: str, more: str) -> str:
    return counted(count, f"job {one}", f"jobs {more}")
