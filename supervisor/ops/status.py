"""The data that `status` shows, from the registry, the scoreboards of running supervisors, and the jobs table.

Independent of the database engine. Times are seconds, memory is bytes.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from supervisor.config.limits import written
from supervisor.domain.history import HOUR, QUIET, Minute, by_type, combined, minute_of, recorded, sums_by_type
from supervisor.domain.job import GATES, Status
from supervisor.domain.text import text_of, without_password
from supervisor.ops.diagnosis import Taker, unmet
from supervisor.ops.supervisors import Seen, seen
from supervisor.ops.views import (
    COUNT_LIMIT,
    MOST_FAILURES,
    MOST_NAMED,
    MOST_TYPES,
    SENTENCE,
    AdminView,
    DeviceMemoryView,
    DutyView,
    MemoryView,
    Overview,
    PoolView,
    Present,
    SupervisorView,
    TypeView,
    WorkerView,
    finite,
    largest,
    schedules_of,
)
from supervisor.store.base import Backlog, ControlState, Depth, Engine, JobSelector, Operations, SupervisorRecord
from supervisor.system import counters
from supervisor.system.kernel import memory_of
from supervisor.system.scoreboard import counters_of
from supervisor.system.slot import Snapshot, pool_of

_MOST_SLOW = 10  # types among the slowest

Named = TypeVar("Named")
Answer = TypeVar("Answer")
View = TypeVar("View")


class Costs:
    """Answers of queries that may read many rows of a large table. Each is kept for `patience` times as long as it took
    to compute, so that a caller that polls uses at most 1/`patience` of a core for it. Quick answers are nearly always
    fresh; exceptions are not kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[Any, float]] = {}  # answers, and until when each is kept

    def answer(self, what: Hashable, patience: float, find: Callable[[], Answer]) -> Answer:
        """The result of `find`, new or kept from the last time that `what` was asked for."""
        began = self._clock()
        kept, until = self._kept.get(what, (None, began))
        if began >= until:
            kept = find()
            ended = self._clock()
            self._kept[what] = kept, ended + patience * (ended - began)
        return cast("Answer", kept)


def gather(
    engine: Engine,
    operations: Operations,
    now: float | None = None,
    costs: Costs | None = None,
    configured: Iterable[Taker] = (),
) -> Overview:
    """Collect the complete overview. Raises StoreError if the database cannot be used.

    `configured` are the pools that count as those that take jobs if those of running supervisors are not known.
    """
    asked = operations.statistics
    now = asked.now() if now is None else now
    costs = costs or Costs()
    controls = operations.controls.current()
    visible = list(seen(operations, now))
    supervisors, pools, workers, *_ = present_of(visible, controls, now, operations.backlog)
    takers: list[Taker] = [*(pools or configured)]
    handled = {type_ for pool in takers for type_ in pool.types}
    # Without a supervisor no type is handled; that is not a problem of single types.
    unhandled = [text_of(type_) for type_ in operations.backlog.unhandled(handled)] if takers else []
    paused = {text_of(type_) for type_ in controls.paused}
    failures = _by_name(costs.answer("failures", 200, lambda: dict(asked.failures(now - HOUR))))
    minutes = minutes_of_last_hour(operations, [one.record for one in visible if one.local], now)
    jobs, counts = _jobs(costs.answer("open", 100, asked.open_counts) + costs.answer("closed", 40, asked.closed_counts))
    speeds = {text_of(one.type): one for one in costs.answer("speeds", 200, asked.speeds)}
    backlog, hour = _by_name(operations.backlog.by_type(now, COUNT_LIMIT)), _by_name(by_type(minutes))
    held = _held(costs.answer("held", 100, asked.held_counts)) if jobs["held"] else {}
    for type_, of_type in counts.items():  # counted at another time: one sum and its parts are shown together
        if "held" in of_type:
            of_type["held"] = sum(held.get(type_, {}).values())
    jobs["held"] = sum(of_type.get("held", 0) for of_type in counts.values())
    limits = {text_of(view.type): view for view in operations.gates.limits()}
    types = []
    for type_ in sorted(counts.keys() | paused | handled | limits.keys()):
        speed, depth, gate = speeds.get(type_), backlog.get(type_, Depth()), limits.get(type_)
        types.append(
            TypeView(
                type=type_,
                jobs=counts.get(type_, {}),
                paused=type_ in paused,
                handled=type_ in handled,
                failures_last_hour=failures.get(type_, 0),
                mean_seconds=None if speed is None else finite(speed.mean),
                longest_seconds=None if speed is None else finite(speed.longest),
                due=depth.due,
                oldest_age=_span(depth.oldest, now),
                last_hour=hour.get(type_, QUIET),
                limits={} if gate is None else written(gate.limits),
                limits_chosen=gate is not None and gate.chosen,
                breaker_open=gate is not None and gate.is_open,
                held=held.get(type_, {}),
            )
        )
    types, others = _foremost(types)
    return Overview(
        database=without_password(engine.url),
        time=now,
        supervisors=supervisors,
        pools=sorted(pools, key=lambda pool: (pool.name, pool.supervisor)),
        workers=sorted(workers, key=_number),
        jobs=jobs,
        types=types,
        paused=sorted(paused)[:MOST_NAMED],
        server=costs.answer("server", 100, asked.server),
        gone=operations.registry.gone(now)[:MOST_NAMED],
        unhandled=unhandled[:MOST_NAMED],
        failures_last_hour=dict(sorted(failures.items(), key=lambda pair: -pair[1])[:MOST_TYPES]),
        slowest=[
            {"type": name, "count": speed.jobs, "mean": finite(speed.mean), "longest": finite(speed.longest)}
            for name, speed in islice(speeds.items(), _MOST_SLOW)
        ],
        schedules=schedules_of(operations.schedules.planned(), now),
        unhandled_types=len(unhandled),
        more_types=len(others),
        other_types=_together(others) if others else None,
        unmet=unmet(operations.backlog.due_groups(now), takers)[:MOST_NAMED],
        last_hour=combined(minutes),
        held=dict(sum(map(Counter, held.values()), Counter[str]())),
        causes=costs.answer("causes", 200, lambda: asked.error_groups(now - HOUR, MOST_NAMED, MOST_FAILURES)),
    )


def present_of(visible: list[Seen], controls: ControlState, now: float, backlog: Backlog | None = None) -> Present:
    """What is to be seen of these. Only with a backlog are the jobs of pools counted, and the memory of workers
    measured.
    """
    workers = [[_worker(slot, one, measured=backlog is not None) for slot in one.workers] for one in visible]
    pools = [
        _pool(backlog, name, one, controls, own, now)
        for one, own in zip(visible, workers, strict=True)
        for name in one.pools
    ]
    supervisors = [_supervisor(one, controls.drained) for one in visible]
    return Present(supervisors, pools, [worker for own in workers for worker in own], controls.paused)


def minutes_of_last_hour(operations: Operations, here: Iterable[SupervisorRecord], now: float) -> list[Minute]:
    """What ran in the last hour, also in the current minute, which the history does not have yet: of the supervisors
    `here`, whose counters can be read. `now` is Unix seconds.

    A minute that is recorded between the looks is missing once; it is never counted twice.
    """
    counted = [(record.id, sums_by_type(counters.sums(counters_of(Path(record.scoreboard))))) for record in here]
    found = operations.history.minutes(now - HOUR, now)
    for supervisor, sums in counted:
        if sums:
            before = sums_by_type(json.loads(operations.history.counted(supervisor)))
            found += recorded(minute_of(now), sums, before, ())
    return found


def _by_name(found: Mapping[Any, Named]) -> dict[str, Named]:
    return {text_of(type_): value for type_, value in found.items()}


def _jobs(counts: Iterable[tuple[Any, Status, int]]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """How many jobs are in each state: of all types, and of each."""
    total = {status.value: 0 for status in Status}
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for type_, status, count in counts:
        of_type = found[text_of(type_)]
        of_type[status.value] = of_type.get(status.value, 0) + count
        total[status.value] += count
    return total, found


def _held(counts: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """How many jobs of each type are held, by the gates."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(GATES, 0))
    for type_, gate, count in counts:
        found[text_of(type_)][gate] += count
    return found


def _foremost(types: list[TypeView]) -> tuple[list[TypeView], list[TypeView]]:
    """The types that are listed individually, in their order, and the others."""
    if len(types) <= MOST_TYPES:
        return types, []

    def interest(view: TypeView) -> tuple[bool, bool, int, int, str]:
        return not view.handled, not view.paused, -view.due, -sum(view.jobs.values()), view.type

    ordered = sorted(types, key=interest)
    return sorted(ordered[:MOST_TYPES], key=lambda view: view.type), ordered[MOST_TYPES:]


def _together(views: Sequence[TypeView]) -> TypeView:
    """One view for all of these types; values that cannot be summed are left out."""
    jobs: Counter[str] = Counter()
    for view in views:
        jobs.update(view.jobs)
    return TypeView(
        type="",
        jobs=dict(jobs),
        paused=any(view.paused for view in views),
        handled=any(view.handled for view in views),
        failures_last_hour=sum(view.failures_last_hour for view in views),
        mean_seconds=None,
        longest_seconds=largest(view.longest_seconds for view in views),
        due=sum(view.due for view in views),
        oldest_age=largest(view.oldest_age for view in views),
        held=dict(sum((Counter(view.held) for view in views), Counter[str]())),
    )


def _view(view: type[View], found: Any, **known: Any) -> View | None:
    """What a supervisor has published, as one of these views, with the fields that are `known` here. Texts are
    cut, since any program may have written them. None if it has not published it, or something else.
    """
    try:
        own = {name: _cut(found[name]) for name in view._fields if name in found}  # type: ignore
        return view(**own | known)
    except (TypeError, LookupError, ValueError, AttributeError):
        return None


def _views(view: type[View], found: Any) -> list[View]:
    """The same for a table of them, by name."""
    named = list(found.items())[:MOST_NAMED] if isinstance(found, dict) else []
    return [one for name, values in named if (one := _view(view, values, name=text_of(name))) is not None]


def _cut(value: Any) -> Any:
    return text_of(value, SENTENCE) if isinstance(value, str) else value


def _supervisor(seen: Seen, drained: frozenset[str]) -> SupervisorView:
    record, status = seen.record, seen.status or {}
    memory = status.get("memory")
    devices = memory.get("devices") if isinstance(memory, dict) else None
    return SupervisorView(
        id=record.id,
        pid=record.pid,
        host=text_of(record.host),
        alive=seen.alive,
        visible=seen.status is not None,
        started_at=record.started_at,
        version=text_of(record.version),
        config=text_of(record.config, SENTENCE),
        maintainer=status.get("maintainer"),
        stopping=_cut(status.get("stopping") or ""),
        trouble=_cut(status.get("trouble") or ""),
        admin=_view(AdminView, status.get("admin")),
        duties=_views(DutyView, status.get("duties")),
        log_lost=lost if isinstance(lost := status.get("log_lost"), int) else 0,
        lease_left=None if seen.lease is None else finite(seen.lease.left),
        drained=record.host in drained,
        memory=_view(MemoryView, memory, devices=_views(DeviceMemoryView, devices)),
    )


def _pool(
    backlog: Backlog | None, name: str, seen: Seen, controls: ControlState, workers: Iterable[WorkerView], now: float
) -> PoolView:
    """Sizes and reasons as its supervisor has published them; waiting jobs are counted now."""
    found, record = seen.pools[name], seen.record
    types, capabilities = ([*map(str, found.get(key, ()))] for key in ("types", "capabilities"))
    least = one if isinstance(one := found.get("min_priority"), int) else None
    paused = [type_ for type_ in types if type_ in controls.paused]
    wanted = JobSelector(tuple(type_ for type_ in types if type_ not in paused), " ".join(capabilities), least)
    depth = Depth() if backlog is None else backlog.depth(wanted, now, COUNT_LIMIT)
    known: dict[str, Any] = {
        "name": name,
        "supervisor": record.pid,
        "host": text_of(record.host),
        "types": types,
        "capabilities": capabilities,
        "min_priority": least,
        "due": depth.due,
        "oldest_age": _span(depth.oldest, now),
        "next_due_in": _span(now, depth.next_due),
        "paused": paused,
        "memory": sum(worker.memory or 0 for worker in workers if worker.pool == name),
    }
    if record.host in controls.drained:
        known["why"] = "drained"
    if (seen.status or {}).get("stopping"):
        known["why"] = "the supervisor is stopping"
    return _view(PoolView, found, **known) or PoolView(**known)


def _span(begin: float | None, end: float | None) -> float | None:
    """Seconds; None if either is no time."""
    if begin is None or end is None or not math.isfinite(end - begin):
        return None
    return max(0.0, end - begin)


def _worker(slot: Snapshot, seen: Seen, *, measured: bool) -> WorkerView:
    """Of a worker on another host neither the memory can be measured nor the heartbeat be seen."""
    pool, at = pool_of(slot.name), time.monotonic()  # the clock of heartbeats
    shown, record = seen.pools.get(pool, {}), seen.record
    memory = memory_of(slot.pid) or None if measured and slot.pid and seen.local else None
    return WorkerView(
        name=slot.name,
        pool=pool,
        supervisor=record.pid,
        host=text_of(record.host),
        pid=slot.pid,
        state=slot.state.name.lower(),
        job=slot.job or None,
        running_for=max(0.0, at - slot.started) if slot.job else None,
        time_limit=finite(slot.deadline - slot.started) if slot.job and slot.deadline else None,
        progress=slot.progress if slot.job else None,
        # Without a job or its progress, the text says why the worker waits.
        text=slot.text if slot.job or slot.progress is None else "",
        running=slot.running or (slot.batch if slot.job else 0),
        claims=slot.claims,
        done=slot.done,
        memory=memory if seen.local else shown.get("memory", {}).get(slot.name),
        beat_age=max(0.0, at - slot.beat),
        leaving=shown.get("stale", {}).get(slot.name),
        device=shown.get("devices", {}).get(slot.name),
    )


def _number(worker: WorkerView) -> tuple[str, int, str]:
    """For the order of workers: `tag-2` comes before `tag-10`."""
    number = worker.name.rpartition("-")[2]
    return worker.pool, int(number) if number.isdecimal() else 0, worker.name
