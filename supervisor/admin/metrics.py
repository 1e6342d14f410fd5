"""`GET /metrics`: the overview and the counters in the form for a scraper.

The number of values of a label is bounded, whatever other programs write into the table: types beyond the first
MOST_TYPES are summed under OTHERS, which is not a valid type.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

import supervisor
from supervisor.admin.state import TheState
from supervisor.domain.job import Status
from supervisor.domain.text import json_safe
from supervisor.ops.views import MOST_TYPES, Overview, TypeView
from supervisor.store.base import Operations
from supervisor.system import counters
from supervisor.system.counters import BOUNDS, Counters, TypeCounters
from supervisor.system.scoreboard import Scoreboard, counters_of

OTHERS = "(others)"
STATES = ("starting", "spare", "idle", "busy", "draining")


def routes() -> APIRouter:
    """The route and the sums that it keeps between requests."""
    router = APIRouter()
    ledger = Ledger()

    @router.get("/metrics", include_in_schema=False)
    async def metrics(request: Request, state: TheState) -> Response:
        overview, numbers = await state.watch.overview(), await state.executor.ask(ledger.look)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # A collector of this request: one that is registered globally would cost something between requests.
        collector = SimpleNamespace(collect=functools.partial(_metrics, overview, numbers))
        return Response(encode(collector), media_type=content_type)

    return router


class Numbers(NamedTuple):
    """Sums that only grow: the counters, and how many workers were replaced, by pool and reason; and the length of the
    write-ahead log now.
    """

    counters: Counters
    restarts: Counter[tuple[str, str]]
    wal_bytes: int


class Ledger:
    """Remembers the counters of each supervisor, also of those that have ended: without them the sums would go down,
    which a scraper interprets as a restart.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # several threads call it
        self._counters: dict[str, Counters] = {}
        self._restarts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)

    def look(self, operations: Operations) -> Numbers:
        """Raises StoreError if the database cannot be used. Counters that cannot be read keep their values."""
        records = operations.registry.supervisors()
        total = Numbers(Counters(), Counter(), operations.statistics.log_size())
        with self._guard:
            for record in records:
                scoreboard = Path(record.scoreboard)
                counted = counters.read(counters_of(scoreboard))
                if counted.types or counted.store_busy or counted.locks_reclaimed:
                    self._counters[record.id] = counted
                board = Scoreboard.open(scoreboard)
                pools = {} if board is None else board.supervisor_status().get("pools", {})
                for pool, news in pools.items():
                    for reason, count in news.get("restarts", {}).items():
                        self._restarts[record.id][pool, reason] = count
            for each in self._counters.values():
                total.counters.add(each)
            for restarts in self._restarts.values():
                total.restarts.update(restarts)
        return total


def _metrics(overview: Overview, numbers: Numbers) -> Iterator[Metric]:
    types = [*overview.types, *([overview.other_types] if overview.other_types is not None else [])]
    labels = _labels(types, numbers)
    yield from _supervisors(overview)
    yield from _memory(overview)
    yield from _jobs(overview, types, labels)
    yield from _runs(numbers, labels)
    yield from _pools(overview, numbers)
    yield from _store(overview, numbers)


def _one(name: str, about: str, value: float, kind: type[Any] = GaugeMetricFamily) -> Metric:
    family: Metric = kind(name, about, value=value)
    return family


def _by(
    name: str,
    about: str,
    labels: str | tuple[str, ...],
    values: Mapping[Any, float],
    kind: type[Any] = GaugeMetricFamily,
) -> Metric:
    """A metric with one label, whose values are the keys, or with several, whose values are tuples."""
    family: Any = kind(name, about, labels=[labels] if isinstance(labels, str) else labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(labels, str) else key, float(value))
    return family  # type: ignore[no-any-return]


def _text(name: object) -> str:
    return str(json_safe(name))


def _labels(types: Iterable[TypeView], numbers: Numbers) -> dict[str, str]:
    """The label of each type. Types that pools take or that have run come first, so that their labels do not change."""
    known = {view.type: (not view.handled, 0 if view.handled else -view.due) for view in types}
    known |= dict.fromkeys(numbers.counters.types, (False, 0))
    ordered = sorted(known, key=lambda type_: (type_ == "", *known[type_], str(type_)))
    return {type_: _text(type_) if type_ and at < MOST_TYPES else OTHERS for at, type_ in enumerate(ordered)}


def _supervisors(overview: Overview) -> Iterator[Metric]:
    living = [view for view in overview.supervisors if view.alive is not False]
    about = "Always 1; the label has the version of the admin process."
    yield _by("supervisor_build_info", about, "version", {supervisor.__version__: 1})
    about = "The number of supervisors running on this database; 0: no jobs are run."
    yield _one("supervisor_up", about, len(living))
    about = "The number of supervisors that cannot use the database: locked, full, read-only, gone."
    yield _one("supervisor_database_trouble", about, sum(bool(view.trouble) for view in living))
    drained = {_text(view.host): int(view.drained) for view in living}
    yield _by("supervisor_host_drained", "1 if operators have drained the host: it claims no jobs.", "host", drained)
    leases = {_text(view.host): inf if view.lease_left is None else view.lease_left for view in living}
    about = "Until a host's lease ends if it is not renewed; below 0, others take its jobs. +Inf with SQLite."
    yield _by("supervisor_lease_seconds", about, "host", leases)
    workers = Counter({_text(view.host): 0 for view in living})
    workers.update(_text(worker.host) for worker in overview.workers)
    yield _by("supervisor_host_workers", "Worker processes of a host.", "host", workers)


def _memory(overview: Overview) -> Iterator[Metric]:
    """The budgets. Devices are told by their ids, the machine by none."""
    budgets: Counter[tuple[str, str]] = Counter()
    used: Counter[tuple[str, str, str]] = Counter()
    for view in overview.supervisors:
        if view.alive is False or view.memory is None:
            continue
        host = _text(view.host)
        budgets[host, ""] += view.memory.budget
        used.update({(host, "", _text(name)): size for name, size in view.memory.pools.items()})
        used[host, "", "(templates)"] += view.memory.templates
        for device in view.memory.devices:
            budgets[host, _text(device.name)] += device.budget
            used[host, _text(device.name), ""] += device.used
    about = 'Memory that all pools of a host may use together; the device is "" for that of the machine.'
    yield _by("supervisor_memory_budget_bytes", about, ("host", "device"), budgets)
    about = "Memory that counts towards it: of the machine by pool, (templates) is shared; of a device in all."
    yield _by("supervisor_memory_used_bytes", about, ("host", "device", "pool"), used)


def _jobs(overview: Overview, types: Iterable[TypeView], labels: dict[str, str]) -> Iterator[Metric]:
    counts: Counter[tuple[str, str]] = Counter()
    held: Counter[tuple[str, str]] = Counter()
    oldest: dict[str, float] = {}
    paused: dict[str, bool] = {}
    for view in types:
        label = labels[view.type]
        counts.update({(label, status): view.jobs.get(status, 0) for status in map(str, Status)})
        held.update({(label, gate): count for gate, count in view.held.items()})
        oldest[label] = max(oldest.get(label, 0.0), view.oldest_age or 0.0)
        paused[label] = paused.get(label, False) or view.paused
    about = "Jobs in each of the seven states; in a large table, counts of done and cancelled ones may be minutes old."
    yield _by("supervisor_jobs", about, ("type", "status"), counts)
    about = "Held jobs by what they wait for (after, due, key or type), of types that have any."
    yield _by("supervisor_jobs_held", about, ("type", "gate"), held)
    yield _by("supervisor_oldest_due_seconds", "How long the oldest due job has been waiting.", "type", oldest)
    yield _by("supervisor_type_paused", "1 if an operator has paused the type.", "type", paused)
    others = overview.other_types
    more = overview.more_types if others is not None and others.due and not others.handled else 0
    unhandled = more + sum(bool(view.due and not view.handled) for view in overview.types)
    about = "Types with due jobs that no pool of a running supervisor takes."
    yield _one("supervisor_unhandled_types", about, unhandled)


def _runs(numbers: Numbers, labels: dict[str, str]) -> Iterator[Metric]:
    sums: dict[str, TypeCounters] = defaultdict(TypeCounters)
    for type_, counted in numbers.counters.types.items():
        sums[labels[type_]].add(counted)
    ended = {
        (label, outcome): getattr(counted, outcome)
        for label, counted in sorted(sums.items())
        for outcome in ("done", "failed")
    }
    about = "Runs that ended done or failed (crashes and time limits included), not cancelled or uncharged ones."
    yield _by("supervisor_job_runs", about, ("type", "outcome"), ended, CounterMetricFamily)
    run = HistogramMetricFamily(
        "supervisor_job_run_seconds", "Duration of runs, whatever their outcome.", labels=["type"]
    )
    wait = HistogramMetricFamily(
        "supervisor_job_wait_seconds", "How long jobs had been due when their runs started.", labels=["type"]
    )
    for label, counted in sorted(sums.items()):
        run.add_metric([label], _buckets(counted.run), counted.run_seconds)
        wait.add_metric([label], _buckets(counted.wait), counted.wait_seconds)
    yield from (run, wait)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as the format requires."""
    return list(zip((*map(str, BOUNDS), "+Inf"), map(float, itertools.accumulate(counts)), strict=True))


def _pools(overview: Overview, numbers: Numbers) -> Iterator[Metric]:
    target: Counter[str] = Counter()
    broken: dict[str, bool] = {}
    for pool in overview.pools:
        target[pool.name] += pool.target
        broken[pool.name] = broken.get(pool.name, False) or pool.broken
    yield _by("supervisor_pool_target_workers", "The number of workers that it should have.", "pool", target)
    yield _by("supervisor_pool_broken", "1 if workers cannot be set up; `supervisor status` says why.", "pool", broken)
    states = Counter({(pool.name, state): 0 for pool in overview.pools for state in STATES})
    memory: Counter[str] = Counter({pool.name: 0 for pool in overview.pools})
    for worker in overview.workers:
        if worker.state in STATES:
            states[worker.pool, worker.state] += 1
        memory[worker.pool] += worker.memory or 0
    yield _by("supervisor_workers", f"Worker processes: {', '.join(STATES)}.", ("pool", "state"), states)
    about = "Memory of a pool's workers that is not shared with other processes."
    yield _by("supervisor_worker_memory_bytes", about, "pool", memory)
    about = "Workers that ended and had to be replaced, by reason."
    restarts = dict(sorted(numbers.restarts.items()))
    yield _by("supervisor_worker_restarts", about, ("pool", "reason"), restarts, CounterMetricFamily)
    late = {_text(view.name): view.late for view in overview.schedules}
    yield _by("supervisor_schedule_lag_seconds", "How long a schedule is overdue.", "schedule", late)


def _store(overview: Overview, numbers: Numbers) -> Iterator[Metric]:
    about = "Jobs reclaimed because their locks expired: from stopped or unreachable workers, or other programs."
    yield _one("supervisor_locks_reclaimed", about, numbers.counters.locks_reclaimed, CounterMetricFamily)
    about = "How often a process could not write for 5 s because another program held the database's lock."
    yield _one("supervisor_store_busy", about, numbers.counters.store_busy, CounterMetricFamily)
    about = "Length of the write-ahead log; it grows while a reader keeps a transaction open."
    yield _one("supervisor_wal_bytes", about, numbers.wal_bytes)
    server = overview.server  # without one, these have no values, or those of nothing
    keepers = [] if server is None else server.keepers
    about = "Age of the oldest transaction that keeps dead rows from being removed; claims become slower meanwhile."
    ages = [one.seconds or 0.0 for one in keepers if one.kind != "replication slot"]
    yield _one("supervisor_oldest_transaction_seconds", about, max(ages, default=0.0))
    about = "How many transactions ago a replication slot keeps dead rows from being removed."
    of_slots = [one.transactions for one in keepers if one.kind == "replication slot"]
    yield _one("supervisor_replication_slot_transactions", about, max(of_slots, default=0))
    about = "The part of the server's queue of notifications that is in use."
    yield _one("supervisor_notification_queue_ratio", about, 0.0 if server is None else server.notifications)
    rows = {"jobs": 0} if server is None else {table.name.rpartition(".")[2]: table.dead for table in server.tables}
    about = "Dead rows in the job tables on a PostgreSQL server; 0 with SQLite."
    yield _by("supervisor_dead_rows", about, "table", rows)
