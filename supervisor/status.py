"""What `status` shows: the registry, the scoreboards of living supervisors, and the table, put together.

Nothing here knows the engine; times are seconds, memory is bytes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supervisor.domain.history import QUIET, Hour, by_type
from supervisor.domain.job import Status
from supervisor.maintenance.roster import PRESENT, pool_of
from supervisor.sparing import Sparing
from supervisor.store.base import Depth, Engine, Operations, SupervisorRecord, TypeSpeed, Wanted
from supervisor.system.kernel import memory_of
from supervisor.system.scoreboard import Scoreboard, Snapshot

COUNT_LIMIT = 10_000  # due jobs of a pool are counted no further
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. `running_for` and `beat_age` are seconds, `memory` is what it shares with nobody."""

    name: str
    pool: str
    supervisor: int
    pid: int
    state: str
    job: int | None
    running_for: float | None
    progress: float | None
    text: str
    claims: int
    done: int
    memory: int | None
    beat_age: float
    leaving: str | None
    device: str | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of one supervisor. `due` is counted up to COUNT_LIMIT; `rate` is jobs a second.

    `problem` says what is wrong, `broken` that no older code makes up for it.
    `paused` are those of its types whose jobs are not started; `memory` is what its workers have altogether.
    """

    name: str
    supervisor: int
    types: list[str]
    capabilities: list[str]
    size: int
    target: int
    why: str
    min_workers: int
    max_workers: int
    fixed: int | None
    due: int
    oldest_age: float | None
    next_due_in: float | None
    rate: float
    deaths: int
    problem: str | None
    paused: list[str]
    memory: int
    broken: bool = False


@dataclass(frozen=True, slots=True)
class AdminView:
    """The admin process that a supervisor has or should have: `listen` is a URL, or where it tries to listen."""

    pid: int | None
    listen: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """One supervisor of the registry. `alive` is None where this machine cannot tell; of one that is not
    `visible`, because its scoreboard cannot be read, pools and workers are unknown."""

    id: str
    pid: int
    host: str
    alive: bool | None
    visible: bool
    started_at: float
    version: str
    config: str
    maintainer: int | None
    stopping: str
    trouble: str
    admin: AdminView | None


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type: its jobs by state, failed attempts of the last hour, and how long its latest jobs took.

    `due` jobs wait although their time has come, the first of them for `oldest_age` seconds, whatever pool may
    take them; they are counted up to COUNT_LIMIT. `last_hour` is what our workers did, up to the last full minute.
    """

    type: str
    jobs: dict[str, int]
    paused: bool
    handled: bool
    failures_last_hour: int
    mean_seconds: float | None
    longest_seconds: float | None
    due: int
    oldest_age: float | None
    last_hour: Hour = QUIET


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """One schedule: seconds until it fires next (below 0: nobody fires it), when it last did, by which job."""

    name: str
    next_in: float
    last_at: float | None
    last_job: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment. `handled` of a type says whether a pool of a living supervisor takes it."""

    database: str
    time: float
    supervisors: list[SupervisorView]
    pools: list[PoolView]
    workers: list[WorkerView]
    jobs: dict[str, int]
    types: list[TypeView]
    paused: list[str]
    unhandled: list[str]
    failures_last_hour: dict[str, int]
    slowest: list[dict[str, Any]]
    schedules: list[ScheduleView]

    @property
    def running(self) -> bool:
        return any(supervisor.alive is not False for supervisor in self.supervisors)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"running": self.running}


@dataclass(slots=True)
class Costs:
    """What may read many rows of a large table. Whoever looks again and again keeps one of these: then all of
    it together takes a twentieth of a core at most, and what is dear is a little old.
    """

    open: Sparing[list[tuple[str, Status, int]]] = field(default_factory=lambda: Sparing(100))
    closed: Sparing[list[tuple[str, Status, int]]] = field(default_factory=lambda: Sparing(40))
    failures: Sparing[dict[str, int]] = field(default_factory=lambda: Sparing(200))
    speeds: Sparing[list[TypeSpeed]] = field(default_factory=lambda: Sparing(200))


def gather(engine: Engine, operations: Operations, now: float | None = None, costs: Costs | None = None) -> Overview:
    """Look at everything once. Raises StoreError if the database cannot be used."""
    now = time.time() if now is None else now
    costs = costs or Costs()
    paused = operations.controls().paused
    supervisors: list[SupervisorView] = []
    pools: list[PoolView] = []
    workers: list[WorkerView] = []
    for record in operations.supervisors():
        alive = operations.owner_lives(record)
        board = None if alive is False else Scoreboard.open(Path(record.scoreboard))
        bulletin = {} if board is None else board.bulletin()
        supervisors.append(_supervisor(record, alive, board is not None, bulletin))
        news = bulletin.get("pools", {})
        own = [] if board is None else list(_workers(board, record.pid, news))
        pools += [_pool(operations, name, record.pid, pool, paused, own, now) for name, pool in news.items()]
        workers += own
    handled = {type_ for pool in pools for type_ in pool.types}
    return _overview(engine, operations, costs, now, supervisors, pools, workers, handled, paused)


def _overview(
    engine: Engine,
    operations: Operations,
    costs: Costs,
    now: float,
    supervisors: list[SupervisorView],
    pools: list[PoolView],
    workers: list[WorkerView],
    handled: set[str],
    paused: frozenset[str],
) -> Overview:
    failures = costs.failures.answer(lambda: dict(operations.failures(now - HOUR)))
    speeds = {speed.type: speed for speed in costs.speeds.answer(operations.speeds)}
    backlog = operations.backlog(now, COUNT_LIMIT)
    hour = by_type(operations.history(now - HOUR))
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    totals = {status.value: 0 for status in Status}
    for type_, status, count in costs.open.answer(operations.open_counts) + costs.closed.answer(
        operations.closed_counts
    ):
        counts[type_][status.value] = count
        totals[status.value] += count
    types = [
        TypeView(
            type_,
            counts.get(type_, {}),
            type_ in paused,
            type_ in handled,
            failures.get(type_, 0),
            speeds[type_].mean if type_ in speeds else None,
            speeds[type_].longest if type_ in speeds else None,
            backlog.get(type_, Depth()).due,
            _age(backlog.get(type_, Depth()).oldest, now),
            hour.get(type_, QUIET),
        )
        for type_ in sorted(counts.keys() | paused | handled)
    ]
    return Overview(
        database=engine.url,
        time=now,
        supervisors=supervisors,
        pools=sorted(pools, key=lambda pool: (pool.name, pool.supervisor)),
        workers=sorted(workers, key=_by_name),
        jobs=totals,
        types=types,
        paused=sorted(paused),
        # Without a supervisor nothing is handled, which says nothing about any one type.
        unhandled=operations.unhandled(handled) if pools else [],
        failures_last_hour=failures,
        slowest=[asdict(speed) for speed in speeds.values()],
        schedules=[ScheduleView(s.name, s.next_at - now, s.last_at, s.last_job) for s in operations.schedules()],
    )


def _supervisor(
    record: SupervisorRecord, alive: bool | None, visible: bool, bulletin: Mapping[str, Any]
) -> SupervisorView:
    return SupervisorView(
        id=record.id,
        pid=record.pid,
        host=record.host,
        alive=alive,
        visible=visible,
        started_at=record.started_at,
        version=record.version,
        config=record.config,
        maintainer=bulletin.get("maintainer"),
        stopping=bulletin.get("stopping", ""),
        trouble=bulletin.get("trouble", ""),
        admin=AdminView(**bulletin["admin"]) if bulletin.get("admin") else None,
    )


def _pool(
    operations: Operations,
    name: str,
    supervisor: int,
    news: Mapping[str, Any],
    paused: frozenset[str],
    workers: Iterable[WorkerView],
    now: float,
) -> PoolView:
    """Sizes and reasons as its supervisor has posted them; what waits is counted now."""
    wanted = Wanted(tuple(news["types"]), " ".join(news["capabilities"]))
    depth = operations.depth(wanted, now, COUNT_LIMIT)
    return PoolView(
        name=name,
        supervisor=supervisor,
        types=news["types"],
        capabilities=news["capabilities"],
        size=news["size"],
        target=news["target"],
        why=news["why"],
        min_workers=news["min_workers"],
        max_workers=news["max_workers"],
        fixed=news["fixed"],
        due=depth.due,
        oldest_age=_age(depth.oldest, now),
        next_due_in=None if depth.next_due is None else max(0.0, depth.next_due - now),
        rate=news["rate"],
        deaths=news["deaths"],
        problem=news["problem"] or None,
        broken=bool(news.get("broken", news["problem"])),
        paused=[type_ for type_ in news["types"] if type_ in paused],
        memory=sum(worker.memory or 0 for worker in workers if worker.pool == name),
    )


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def _workers(board: Scoreboard, supervisor: int, pools: Mapping[str, Any]) -> Iterable[WorkerView]:
    at = time.monotonic()  # the clock that beats are stamped with is the same for every process
    for number in range(1, board.highest + 1):
        slot = board.slot(number).read()
        if slot.state in PRESENT:
            yield _worker(slot, supervisor, pools, at)


def _worker(slot: Snapshot, supervisor: int, pools: Mapping[str, Any], at: float) -> WorkerView:
    pool = pool_of(slot.name)
    news = pools.get(pool, {})
    return WorkerView(
        name=slot.name,
        pool=pool,
        supervisor=supervisor,
        pid=slot.pid,
        state=slot.state.name.lower(),
        job=slot.job or None,
        running_for=max(0.0, at - slot.started) if slot.job else None,
        progress=slot.progress if slot.job else None,
        # Without a job or its progress it is the worker's own: why it waits.
        text=slot.text if slot.job or slot.progress is None else "",
        claims=slot.claims,
        done=slot.done,
        memory=memory_of(slot.pid) or None if slot.pid else None,
        beat_age=max(0.0, at - slot.beat),
        leaving=news.get("stale", {}).get(slot.name),
        device=news.get("devices", {}).get(slot.name),
    )


def _by_name(worker: WorkerView) -> tuple[str, int, str]:
    number = worker.name.rpartition("-")[2]
    return worker.pool, int(number) if number.isdecimal() else 0, worker.name
