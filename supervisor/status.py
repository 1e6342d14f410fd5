"""What `status` shows: the registry, the scoreboards of living supervisors, and the table, put together.

Nothing here knows the engine; times are seconds, memory is bytes.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from supervisor.domain.history import QUIET, Hour, by_type
from supervisor.domain.job import Status
from supervisor.maintenance.slot_reader import PRESENT, pool_of
from supervisor.sparing import Sparing
from supervisor.store.base import Depth, Engine, Operations, SupervisorRecord, TypeSpeed, Wanted
from supervisor.system.kernel import memory_of
from supervisor.system.scoreboard import Scoreboard, Snapshot

COUNT_LIMIT = 10_000  # due jobs of a pool are counted no further
MOST_TYPES = 200  # that are told one by one; what else there is, is added up
MOST_NAMED = 50  # types without a pool, and paused ones, by name
MOST_SCHEDULES = 200
_NAME = 200  # characters of a name from a row; ours have 100 at most
_SENTENCE = 1000  # characters of a reason that a supervisor posts
HOUR = 3600.0

Named = TypeVar("Named")


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

    `problem` says what is wrong, `broken` that nobody works for it.
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
class DutyView:
    """A duty of the maintainer's that fails: its latest error, and since when (Unix seconds) it has done so."""

    name: str
    since: float
    error: str


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """One supervisor of the registry. `alive` is None where this machine cannot tell; of one that is not
    `visible`, because its scoreboard cannot be read, pools and workers are unknown.

    `duties` are those of its maintainer that fail, each with its error; `database_holder` says who keeps the
    database's write lock for so long that others wait.
    """

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
    duties: list[DutyView] = field(default_factory=list)  # those that fail


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
    """Everything at one moment. `handled` of a type says whether a pool of a living supervisor takes it.

    `types` are at most MOST_TYPES: those with a pool, the paused ones, and of the others those with the longest
    backlog; `more_types` others are added up in `other_types`. `unhandled` and `paused` name MOST_NAMED at most;
    `unhandled_types` is how many types no pool takes.
    """

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
    unhandled_types: int = 0
    more_types: int = 0
    other_types: TypeView | None = None

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
    failures = _by_name_of(costs.failures.answer(lambda: dict(operations.failures(now - HOUR))))
    speeds = {text_of(speed.type): speed for speed in costs.speeds.answer(operations.speeds)}
    backlog = _by_name_of(operations.backlog(now, COUNT_LIMIT))
    hour = _by_name_of(by_type(operations.history(now - HOUR)))
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    totals = {status.value: 0 for status in Status}
    for type_, status, count in costs.open.answer(operations.open_counts) + costs.closed.answer(
        operations.closed_counts
    ):
        of_type = counts[text_of(type_)]
        of_type[status.value] = of_type.get(status.value, 0) + count
        totals[status.value] += count
    kept = {text_of(type_) for type_ in paused}
    # Without a supervisor nothing is handled, which says nothing about any one type.
    unhandled = [text_of(type_) for type_ in operations.unhandled(handled)] if pools else []
    types = [
        TypeView(
            type_,
            counts.get(type_, {}),
            type_ in kept,
            type_ in handled,
            failures.get(type_, 0),
            _finite(speeds[type_].mean) if type_ in speeds else None,
            _finite(speeds[type_].longest) if type_ in speeds else None,
            backlog.get(type_, Depth()).due,
            _age(backlog.get(type_, Depth()).oldest, now),
            hour.get(type_, QUIET),
        )
        for type_ in sorted(counts.keys() | kept | handled)
    ]
    types, others = _foremost(types)
    return Overview(
        database=engine.url,
        time=now,
        supervisors=supervisors,
        pools=sorted(pools, key=lambda pool: (pool.name, pool.supervisor)),
        workers=sorted(workers, key=_by_name),
        jobs=totals,
        types=types,
        paused=sorted(kept)[:MOST_NAMED],
        unhandled=unhandled[:MOST_NAMED],
        failures_last_hour=dict(sorted(failures.items(), key=lambda pair: -pair[1])[:MOST_TYPES]),
        slowest=[
            {"type": name, "count": speed.count, "mean": _finite(speed.mean), "longest": _finite(speed.longest)}
            for name, speed in speeds.items()
        ],
        schedules=[
            ScheduleView(text_of(s.name), s.next_at - now, _finite(s.last_at), s.last_job)
            for s in operations.schedules()[:MOST_SCHEDULES]
        ],
        unhandled_types=len(unhandled),
        more_types=len(others),
        other_types=_together(others) if others else None,
    )


def text_of(value: object, limit: int = _NAME) -> str:
    """A text from a row or a bulletin, which any program may have written, of a bounded length."""
    text = value[: 4 * limit].decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _by_name_of(found: Mapping[Any, Named]) -> dict[str, Named]:
    return {text_of(type_): value for type_, value in found.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _foremost(types: list[TypeView]) -> tuple[list[TypeView], list[TypeView]]:
    """Those that are told one by one, in their order, and the others."""
    if len(types) <= MOST_TYPES:
        return types, []

    def interest(view: TypeView) -> tuple[bool, bool, int, int, str]:
        backlog = -view.due, -sum(view.jobs.values())
        return not view.handled, not view.paused, *backlog, view.type

    ordered = sorted(types, key=interest)
    return sorted(ordered[:MOST_TYPES], key=lambda view: view.type), ordered[MOST_TYPES:]


def _together(views: Sequence[TypeView]) -> TypeView:
    """One view for all of these types; what is no sum is left out."""
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
        longest_seconds=max((view.longest_seconds for view in views if view.longest_seconds is not None), default=None),
        due=sum(view.due for view in views),
        oldest_age=max((view.oldest_age for view in views if view.oldest_age is not None), default=None),
    )


def _supervisor(
    record: SupervisorRecord, alive: bool | None, visible: bool, bulletin: Mapping[str, Any]
) -> SupervisorView:
    return SupervisorView(
        id=record.id,
        pid=record.pid,
        host=text_of(record.host),
        alive=alive,
        visible=visible,
        started_at=record.started_at,
        version=text_of(record.version),
        config=text_of(record.config, _SENTENCE),
        maintainer=bulletin.get("maintainer"),
        stopping=text_of(bulletin.get("stopping") or "", _SENTENCE),
        trouble=text_of(bulletin.get("trouble") or "", _SENTENCE),
        admin=_admin(bulletin.get("admin")),
        duties=_duties(bulletin.get("duties")),
    )


def _admin(news: Any) -> AdminView | None:
    if not isinstance(news, Mapping):
        return None
    problem = news.get("problem")
    return AdminView(news.get("pid"), text_of(news.get("listen", "")), text_of(problem, _SENTENCE) if problem else None)


def _duties(news: Any) -> list[DutyView]:
    """The failing duties, as the maintainer tells of them."""
    told = list(news.items())[:MOST_NAMED] if isinstance(news, Mapping) else []
    return [
        DutyView(text_of(name), float(failing.get("since", 0.0)), text_of(failing.get("error", ""), _SENTENCE))
        for name, failing in told
        if isinstance(failing, Mapping)
    ]


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
        why=text_of(news["why"], _SENTENCE),
        min_workers=news["min_workers"],
        max_workers=news["max_workers"],
        fixed=news["fixed"],
        due=depth.due,
        oldest_age=_age(depth.oldest, now),
        next_due_in=_ahead(depth.next_due, now),
        rate=news["rate"],
        deaths=news["deaths"],
        problem=text_of(news["problem"], _SENTENCE) if news["problem"] else None,
        broken=bool(news.get("broken", news["problem"])),
        paused=[type_ for type_ in news["types"] if type_ in paused],
        memory=sum(worker.memory or 0 for worker in workers if worker.pool == name),
    )


def _age(since: float | None, now: float) -> float | None:
    return None if since is None or not math.isfinite(since) else max(0.0, now - since)


def _ahead(at: float | None, now: float) -> float | None:
    return None if at is None or not math.isfinite(at) else max(0.0, at - now)


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
