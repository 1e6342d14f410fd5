"""The data that `status` shows, from the registry, the scoreboards of running supervisors, and the jobs table.

Independent of the database engine. Times are seconds, memory is bytes.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from supervisor.domain.history import HOUR, QUIET, Minute, by_type, combined, minute_of, recorded
from supervisor.domain.job import Status
from supervisor.domain.text import text_of, without_password
from supervisor.maintenance.history import decoded_sums, sums_of
from supervisor.maintenance.waking import pool_of
from supervisor.ops.diagnosis import Taker, unmet
from supervisor.ops.supervisors import Seen, seen
from supervisor.ops.views import (
    COUNT_LIMIT,
    MOST_NAMED,
    MOST_TYPES,
    SENTENCE,
    AdminView,
    DeviceMemoryView,
    DutyView,
    MemoryView,
    Overview,
    PoolView,
    SupervisorView,
    TypeView,
    WorkerView,
    finite,
    largest,
    schedules_of,
    server_of,
)
from supervisor.store.base import (
    ControlState,
    Depth,
    Engine,
    JobSelector,
    Operations,
    ServerState,
    SupervisorRecord,
    TypeSpeed,
)
from supervisor.system.kernel import memory_of
from supervisor.system.scoreboard import counters_of
from supervisor.system.slot import Snapshot

_MOST_SLOW = 10  # types among the slowest
_POSTED = ("types", "capabilities", "size", "target", "min_workers", "max_workers", "fixed", "rate", "deaths")

Named = TypeVar("Named")
Answer = TypeVar("Answer")


class CostCache(Generic[Answer]):
    """Keeps an answer for `patience` times as long as it took to compute, so that frequent callers use at most
    1/`patience` of a core.

    Answers that are computed quickly are nearly always fresh.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._kept: Answer | None = None
        self._until = 0.0

    def answer(self, find: Callable[[], Answer]) -> Answer:
        """The result of `find`, new or cached. Exceptions are not cached."""
        began = self._clock()
        kept = self._kept
        if kept is None or began >= self._until:
            kept = self._kept = find()
            ended = self._clock()
            self._until = ended + self._patience * (ended - began)
        return kept


@dataclass(slots=True)
class Costs:
    """Caches for queries that may read many rows of a large table. A caller that polls keeps one of these: then the
    queries together use at most a twentieth of a core, and expensive values may be slightly old.
    """

    open: CostCache[list[tuple[str, Status, int]]] = field(default_factory=lambda: CostCache(100))
    closed: CostCache[list[tuple[str, Status, int]]] = field(default_factory=lambda: CostCache(40))
    failures: CostCache[dict[str, int]] = field(default_factory=lambda: CostCache(200))
    speeds: CostCache[list[TypeSpeed]] = field(default_factory=lambda: CostCache(200))
    server: CostCache[ServerState | None] = field(default_factory=lambda: CostCache(100))


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
    now = operations.statistics.now() if now is None else now
    costs = costs or Costs()
    controls = operations.controls.current()
    paused = controls.paused
    visible = list(seen(operations, now))
    supervisors, pools, workers = _posted(operations, visible, controls, now)
    takers: list[Taker] = [*(pools or configured)]
    handled = {type_ for pool in takers for type_ in pool.types}
    failures = _by_name_of(costs.failures.answer(lambda: dict(operations.statistics.failures(now - HOUR))))
    speeds = {text_of(speed.type): speed for speed in costs.speeds.answer(operations.statistics.speeds)}
    backlog = _by_name_of(operations.backlog.by_type(now, COUNT_LIMIT))
    minutes = minutes_of_last_hour(operations, [one.record for one in visible if one.local], now)
    hour = _by_name_of(by_type(minutes))
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    totals = {status.value: 0 for status in Status}
    for type_, status, count in costs.open.answer(operations.statistics.open_counts) + costs.closed.answer(
        operations.statistics.closed_counts
    ):
        of_type = counts[text_of(type_)]
        of_type[status.value] = of_type.get(status.value, 0) + count
        totals[status.value] += count
    kept = {text_of(type_) for type_ in paused}
    # Without a supervisor no type is handled; that is not a problem of single types.
    unhandled = [text_of(type_) for type_ in operations.backlog.unhandled(handled)] if takers else []
    types = []
    for type_ in sorted(counts.keys() | kept | handled):
        speed, depth = speeds.get(type_), backlog.get(type_, Depth())
        types.append(
            TypeView(
                type_,
                counts.get(type_, {}),
                type_ in kept,
                type_ in handled,
                failures.get(type_, 0),
                None if speed is None else finite(speed.mean),
                None if speed is None else finite(speed.longest),
                depth.due,
                _span(depth.oldest, now),
                hour.get(type_, QUIET),
            )
        )
    types, others = _foremost(types)
    return Overview(
        database=without_password(engine.url),
        time=now,
        supervisors=supervisors,
        pools=sorted(pools, key=lambda pool: (pool.name, pool.supervisor)),
        workers=sorted(workers, key=_by_name),
        jobs=totals,
        types=types,
        paused=sorted(kept)[:MOST_NAMED],
        server=server_of(costs.server.answer(operations.statistics.server)),
        gone=operations.registry.gone(now)[:MOST_NAMED],
        unhandled=unhandled[:MOST_NAMED],
        failures_last_hour=dict(sorted(failures.items(), key=lambda pair: -pair[1])[:MOST_TYPES]),
        slowest=[
            {"type": name, "count": speed.count, "mean": finite(speed.mean), "longest": finite(speed.longest)}
            for name, speed in islice(speeds.items(), _MOST_SLOW)
        ],
        schedules=schedules_of(operations.schedules.planned(), now),
        unhandled_types=len(unhandled),
        more_types=len(others),
        other_types=_together(others) if others else None,
        unmet=unmet(operations.backlog.due_groups(now), takers)[:MOST_NAMED],
        last_hour=combined(minutes),
    )


def minutes_of_last_hour(operations: Operations, here: Iterable[SupervisorRecord], now: float) -> list[Minute]:
    """What ran in the last hour, also in the current minute, which the history does not have yet: of the supervisors
    `here`, whose counters can be read. `now` is Unix seconds.

    A minute that is recorded between the looks is missing once; it is never counted twice.
    """
    counted = [(record.id, sums_of(counters_of(Path(record.scoreboard)))) for record in here]
    found = operations.history.minutes(now - HOUR, now)
    for supervisor, sums in counted:
        if sums:
            found += recorded(minute_of(now), sums, decoded_sums(operations.history.counted(supervisor)), ())
    return found


def _posted(
    operations: Operations, visible: Iterable[Seen], controls: ControlState, now: float
) -> tuple[list[SupervisorView], list[PoolView], list[WorkerView]]:
    """What supervisors have registered and posted."""
    supervisors: list[SupervisorView] = []
    pools: list[PoolView] = []
    workers: list[WorkerView] = []
    for one in visible:
        record, news, at = one.record, (one.status or {}).get("pools", {}), time.monotonic()  # the clock of heartbeats
        supervisors.append(_supervisor(one, controls.drained))
        own = [_worker(slot, record, news, at, local=one.local) for slot in one.workers]
        found = [_pool(operations, name, record, pool, controls.paused, own, now) for name, pool in news.items()]
        pools += [replace(pool, why="drained") for pool in found] if record.host in controls.drained else found
        workers += own
    return supervisors, pools, workers


def _by_name_of(found: Mapping[Any, Named]) -> dict[str, Named]:
    return {text_of(type_): value for type_, value in found.items()}


def _foremost(types: list[TypeView]) -> tuple[list[TypeView], list[TypeView]]:
    """The types that are listed individually, in their order, and the others."""
    if len(types) <= MOST_TYPES:
        return types, []

    def interest(view: TypeView) -> tuple[bool, bool, int, int, str]:
        backlog = -view.due, -sum(view.jobs.values())
        return not view.handled, not view.paused, *backlog, view.type

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
    )


def _supervisor(seen: Seen, drained: frozenset[str]) -> SupervisorView:
    record, supervisor_status = seen.record, seen.status or {}
    return SupervisorView(
        id=record.id,
        pid=record.pid,
        host=text_of(record.host),
        alive=seen.alive,
        visible=seen.status is not None,
        started_at=record.started_at,
        version=text_of(record.version),
        config=text_of(record.config, SENTENCE),
        maintainer=supervisor_status.get("maintainer"),
        stopping=text_of(supervisor_status.get("stopping") or "", SENTENCE),
        trouble=text_of(supervisor_status.get("trouble") or "", SENTENCE),
        admin=_read(_admin, supervisor_status.get("admin")),
        duties=_read(_duties, supervisor_status.get("duties")) or [],
        log_lost=lost if isinstance(lost := supervisor_status.get("log_lost"), int) else 0,
        lease_left=None if seen.lease is None else finite(seen.lease.left),
        drained=record.host in drained,
        memory=_read(_memory, supervisor_status.get("memory")),
    )


def _read(view: Callable[[Any], Answer], news: Any) -> Answer | None:
    """From what a supervisor has posted; None if it has not, or if something else has."""
    try:
        return view(news)
    except (TypeError, LookupError, ValueError, AttributeError):
        return None


def _admin(news: Any) -> AdminView:
    problem = news["problem"]
    return AdminView(news["pid"], text_of(news["listen"]), text_of(problem, SENTENCE) if problem else None)


def _duties(news: Any) -> list[DutyView]:
    """The failing duties, as the maintainer reports them."""
    failing = list(news.items())[:MOST_NAMED]
    return [DutyView(text_of(name), float(one["since"]), text_of(one["error"], SENTENCE)) for name, one in failing]


def _memory(news: Any) -> MemoryView:
    devices = [DeviceMemoryView(text_of(name), int(m["budget"]), int(m["used"])) for name, m in news["devices"].items()]
    pools = {text_of(name): int(used) for name, used in news["pools"].items()}
    return MemoryView(int(news["budget"]), bool(news["stated"]), pools, int(news["templates"]), devices)


def _pool(
    operations: Operations,
    name: str,
    record: SupervisorRecord,
    news: Mapping[str, Any],
    paused: frozenset[str],
    workers: Iterable[WorkerView],
    now: float,
) -> PoolView:
    """Sizes and reasons as its supervisor has posted them; waiting jobs are counted now."""
    types = tuple(type_ for type_ in news["types"] if type_ not in paused)
    min_priority = least if isinstance(least := news.get("min_priority"), int) else None
    wanted = JobSelector(types, " ".join(news["capabilities"]), min_priority)
    depth = operations.backlog.depth(wanted, now, COUNT_LIMIT)
    return PoolView(
        **{key: news[key] for key in _POSTED},
        name=name,
        supervisor=record.pid,
        host=text_of(record.host),
        why=text_of(news["why"], SENTENCE),
        due=depth.due,
        oldest_age=_span(depth.oldest, now),
        next_due_in=_span(now, depth.next_due),
        problem=text_of(news["problem"], SENTENCE) if news["problem"] else None,
        broken=bool(news.get("broken", news["problem"])),
        paused=[type_ for type_ in news["types"] if type_ in paused],
        memory=sum(worker.memory or 0 for worker in workers if worker.pool == name),
        leaving=news.get("leaving", 0),
        spares=news.get("spares", 0),
        spares_wanted=news.get("spares_wanted", 0),
        min_priority=min_priority,
        threads=text_of(news.get("threads", ""), SENTENCE),
    )


def _span(begin: float | None, end: float | None) -> float | None:
    """Seconds; None if either is no time."""
    if begin is None or end is None or not math.isfinite(end - begin):
        return None
    return max(0.0, end - begin)


def _worker(
    slot: Snapshot, record: SupervisorRecord, pools: Mapping[str, Any], at: float, *, local: bool
) -> WorkerView:
    """Of a worker on another host neither the memory can be measured nor the heartbeat be seen."""
    pool = pool_of(slot.name)
    news = pools.get(pool, {})
    return WorkerView(
        name=slot.name,
        pool=pool,
        supervisor=record.pid,
        host=text_of(record.host),
        pid=slot.pid,
        state=slot.state.name.lower(),
        job=slot.job or None,
        running_for=max(0.0, at - slot.started) if slot.job else None,
        progress=slot.progress if slot.job else None,
        # Without a job or its progress, the text says why the worker waits.
        text=slot.text if slot.job or slot.progress is None else "",
        running=slot.running or (slot.batch if slot.job else 0),
        claims=slot.claims,
        done=slot.done,
        memory=(memory_of(slot.pid) or None if slot.pid else None) if local else news.get("memory", {}).get(slot.name),
        beat_age=max(0.0, at - slot.beat),
        leaving=news.get("stale", {}).get(slot.name),
        device=news.get("devices", {}).get(slot.name),
    )


def _by_name(worker: WorkerView) -> tuple[str, int, str]:
    number = worker.name.rpartition("-")[2]
    return worker.pool, int(number) if number.isdecimal() else 0, worker.name
