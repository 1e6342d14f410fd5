"""`GET /metrics`: the overview and the counters in the form for a scraper.

The number of values of a label is bounded, whatever other programs write into the table: types beyond the first
MOST_TYPES are summed under OTHERS, which is not a valid type.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

import supervisor
from supervisor.admin.state import TheState
from supervisor.domain.job import Status
from supervisor.domain.text import json_safe
from supervisor.ops.views import MOST_TYPES, Overview, ServerView, TypeView
from supervisor.store.base import Operations
from supervisor.system import counters
from supervisor.system.counters import BOUNDS, Counters, TypeCounters
from supervisor.system.scoreboard import Scoreboard, counters_of

OTHERS = "(others)"
STATES = ("starting", "spare", "idle", "busy", "draining")


@dataclass(frozen=True)
class _Moment(Collector):
    """The metrics of one request. They are not registered globally, so that they cost nothing between requests."""

    overview: Overview
    numbers: Numbers

    def collect(self) -> Iterator[Metric]:
        return metric_families(self.overview, self.numbers)


def routes() -> APIRouter:
    """The route and the sums that it keeps between requests."""
    router = APIRouter()
    ledger = Ledger()

    @router.get("/metrics", include_in_schema=False)
    async def metrics(request: Request, state: TheState) -> Response:
        moment = _Moment(await state.watch.overview(), await state.executor.ask(ledger.look))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(moment), media_type=content_type)

    return router


Restarts = Counter[tuple[str, str]]
"""How many workers were replaced, by pool and reason."""


@dataclass(slots=True)
class Numbers:
    """`wal_bytes` is the write-ahead log's length now; the others are sums that only grow."""

    counters: Counters = field(default_factory=Counters)
    restarts: Restarts = field(default_factory=Counter)
    wal_bytes: int = 0


class Ledger:
    """Remembers the counters of each supervisor. Without those of ended supervisors the sums would go down, which a
    scraper interprets as a restart.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # several threads call it
        self._seen: dict[str, Numbers] = {}
        self._gone = Numbers()

    def look(self, operations: Operations) -> Numbers:
        """Raises StoreError if the database cannot be used."""
        records = operations.registry.supervisors()
        total = Numbers(wal_bytes=operations.statistics.log_size())
        with self._guard:
            for record in records:
                self._note(record.id, Path(record.scoreboard))
            for supervisor in self._seen.keys() - {record.id for record in records}:
                _add(self._gone, self._seen.pop(supervisor))
            for numbers in (self._gone, *self._seen.values()):
                _add(total, numbers)
        return total

    def _note(self, supervisor: str, scoreboard: Path) -> None:
        """Update the counters of a supervisor. If they are gone or cannot be read, the last known values remain."""
        seen = self._seen.setdefault(supervisor, Numbers())
        counted = counters.read(counters_of(scoreboard))
        if counted.types or counted.store_busy or counted.locks_reclaimed:
            seen.counters = counted
        board = Scoreboard.open(scoreboard)
        pools = {} if board is None else board.supervisor_status().get("pools", {})
        for pool, news in pools.items():
            for reason, count in news.get("restarts", {}).items():
                seen.restarts[pool, reason] = max(seen.restarts[pool, reason], count)


def _add(total: Numbers, other: Numbers) -> None:
    total.counters.add(other.counters)
    total.restarts.update(other.restarts)


def metric_families(overview: Overview, numbers: Numbers) -> Iterator[Metric]:
    """All metrics at one moment."""
    types = [*overview.types, *([overview.other_types] if overview.other_types is not None else [])]
    labels = _labels(types, numbers)
    yield from _supervisors(overview)
    yield from _memory(overview)
    yield from _jobs(types, labels, _unhandled(overview))
    yield from _runs(numbers, labels)
    yield from _pools(overview)
    yield from _workers(overview, numbers)
    yield from _schedules(overview)
    yield from _store(numbers)
    yield from _server(overview.server)


def _labels(types: Iterable[TypeView], numbers: Numbers) -> dict[str, str]:
    """The label of each type. Types that pools take or that have run come first, so that their labels do not change."""
    known = {view.type: (not view.handled, 0 if view.handled else -view.due) for view in types}
    known |= dict.fromkeys(numbers.counters.types, (False, 0))
    ordered = sorted(known, key=lambda type_: (type_ == "", *known[type_], str(type_)))
    return {type_: str(json_safe(type_)) if type_ and at < MOST_TYPES else OTHERS for at, type_ in enumerate(ordered)}


def _supervisors(overview: Overview) -> Iterator[Metric]:
    living = [view for view in overview.supervisors if view.alive is not False]
    about = "Always 1; the label has the version of the admin process."
    yield _by("supervisor_build_info", about, "version", {supervisor.__version__: 1})
    yield GaugeMetricFamily(
        "supervisor_up", "The number of supervisors running on this database; 0: no jobs are run.", value=len(living)
    )
    yield GaugeMetricFamily(
        "supervisor_database_trouble",
        "The number of supervisors that cannot use the database: locked, full, read-only, gone.",
        value=sum(bool(view.trouble) for view in living),
    )
    drained = {_host(view.host): int(view.drained) for view in living}
    yield _by("supervisor_host_drained", "1 if operators have drained the host: it claims no jobs.", "host", drained)
    leases = {_host(view.host): inf if view.lease_left is None else view.lease_left for view in living}
    about = "Until the lease of a host's supervisor ends if it is not renewed; +Inf where none is needed."
    yield _by("supervisor_lease_seconds", about, "host", leases)
    workers = Counter({_host(view.host): 0 for view in living})
    workers.update(_host(worker.host) for worker in overview.workers)
    yield _by("supervisor_host_workers", "Worker processes of a host.", "host", workers)


def _memory(overview: Overview) -> Iterator[Metric]:
    """The budgets. Devices are told by their ids, the machine by none."""
    budgets: Counter[tuple[str, str]] = Counter()
    used: Counter[tuple[str, str, str]] = Counter()
    for view in overview.supervisors:
        if view.alive is False or view.memory is None:
            continue
        host = _host(view.host)
        budgets[host, ""] += view.memory.budget
        used.update({(host, "", str(json_safe(name))): size for name, size in view.memory.pools.items()})
        used[host, "", "(templates)"] += view.memory.templates
        for device in view.memory.devices:
            budgets[host, str(json_safe(device.name))] += device.budget
            used[host, str(json_safe(device.name)), ""] += device.used
    about = 'Memory that all pools of a host may use together; the device is "" for that of the machine.'
    yield _by("supervisor_memory_budget_bytes", about, ("host", "device"), budgets)
    about = "Memory that counts towards the budget: of the machine by pool, of a device in all."
    yield _by("supervisor_memory_used_bytes", about, ("host", "device", "pool"), used)


def _host(name: str) -> str:
    return str(json_safe(name))


def _unhandled(overview: Overview) -> int:
    others = overview.other_types
    more = overview.more_types if others is not None and others.due and not others.handled else 0
    return more + sum(bool(view.due and not view.handled) for view in overview.types)


def _jobs(types: Iterable[TypeView], labels: dict[str, str], unhandled: int) -> Iterator[Metric]:
    counts: dict[str, Counter[str]] = defaultdict(lambda: Counter(dict.fromkeys(map(str, Status), 0)))
    oldest: dict[str, float] = {}
    paused: dict[str, bool] = {}
    for view in types:
        label = labels[view.type]
        counts[label].update(view.jobs)
        oldest[label] = max(oldest.get(label, 0.0), view.oldest_age or 0.0)
        paused[label] = paused.get(label, False) or view.paused
    yield _by(
        "supervisor_jobs",
        "Rows of the jobs table. In a large table the counts of finished jobs may be slightly out of date.",
        ("type", "status"),
        {(label, status): count for label, statuses in counts.items() for status, count in statuses.items()},
    )
    yield _by("supervisor_oldest_due_seconds", "How long the oldest due job has been waiting.", "type", oldest)
    yield _by("supervisor_type_paused", "1 if an operator has paused the type.", "type", paused)
    yield GaugeMetricFamily(
        "supervisor_unhandled_types", "Types with due jobs that no pool of a running supervisor takes.", value=unhandled
    )


def _runs(numbers: Numbers, labels: dict[str, str]) -> Iterator[Metric]:
    sums: dict[str, TypeCounters] = defaultdict(TypeCounters)
    for type_, counted in numbers.counters.types.items():
        sums[labels[type_]].add(counted)
    runs = CounterMetricFamily(
        "supervisor_job_runs",
        "Runs that have ended, by outcome. Crashes and time-outs are failures; each attempt counts.",
        labels=["type", "outcome"],
    )
    run = HistogramMetricFamily(
        "supervisor_job_run_seconds", "Duration of runs, whatever their outcome.", labels=["type"]
    )
    wait = HistogramMetricFamily(
        "supervisor_job_wait_seconds", "How long jobs had been due when their runs started.", labels=["type"]
    )
    for label, counted in sorted(sums.items()):
        runs.add_metric([label, "done"], counted.done)
        runs.add_metric([label, "failed"], counted.failed)
        run.add_metric([label], _buckets(counted.run), counted.run_seconds)
        wait.add_metric([label], _buckets(counted.wait), counted.wait_seconds)
    yield from (runs, run, wait)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as the format requires."""
    found, total = [], 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


def _pools(overview: Overview) -> Iterator[Metric]:
    target: Counter[str] = Counter()
    broken: dict[str, bool] = {}
    for pool in overview.pools:
        target[pool.name] += pool.target
        broken[pool.name] = broken.get(pool.name, False) or pool.broken
    yield _by("supervisor_pool_target_workers", "The target number of workers.", "pool", target)
    yield _by("supervisor_pool_broken", "1 if workers cannot be set up; `supervisor status` says why.", "pool", broken)


def _workers(overview: Overview, numbers: Numbers) -> Iterator[Metric]:
    states = {(pool.name, state): 0 for pool in overview.pools for state in STATES}
    memory: Counter[str] = Counter({pool.name: 0 for pool in overview.pools})
    for worker in overview.workers:
        if worker.state in STATES:
            states[worker.pool, worker.state] = states.get((worker.pool, worker.state), 0) + 1
        memory[worker.pool] += worker.memory or 0
    yield _by("supervisor_workers", "Worker processes.", ("pool", "state"), states)
    yield _by(
        "supervisor_worker_memory_bytes",
        "Memory of a pool's workers that is not shared with other processes.",
        "pool",
        memory,
    )
    about = "Workers that ended and had to be replaced, by reason."
    restarts = dict(sorted(numbers.restarts.items()))
    yield _by("supervisor_worker_restarts", about, ("pool", "reason"), restarts, CounterMetricFamily)


def _schedules(overview: Overview) -> Iterator[Metric]:
    late = {str(json_safe(view.name)): view.late for view in overview.schedules}
    yield _by("supervisor_schedule_lag_seconds", "How long a schedule is overdue.", "schedule", late)


def _store(numbers: Numbers) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "supervisor_locks_reclaimed",
        "Jobs reclaimed because their locks expired: from stopped or unreachable workers, or other programs.",
        value=numbers.counters.locks_reclaimed,
    )
    yield CounterMetricFamily(
        "supervisor_store_busy",
        "How often a process could not write for 5 s because another program held the database's lock.",
        value=numbers.counters.store_busy,
    )
    yield GaugeMetricFamily(
        "supervisor_wal_bytes",
        "Length of the write-ahead log; it grows while a reader keeps a transaction open.",
        value=numbers.wal_bytes,
    )


def _server(server: ServerView | None) -> Iterator[Metric]:
    """Without a server the metrics have no values, or those of nothing."""
    keepers = [] if server is None else server.keepers
    of_slots = [one.transactions for one in keepers if one.kind == "replication slot"]
    ages = [one.seconds or 0.0 for one in keepers if one.kind != "replication slot"]
    yield GaugeMetricFamily(
        "supervisor_oldest_transaction_seconds",
        "Age of the oldest transaction that keeps dead rows from being removed; claims become slower meanwhile.",
        value=max(ages, default=0.0),
    )
    yield GaugeMetricFamily(
        "supervisor_replication_slot_transactions",
        "How many transactions ago a replication slot keeps dead rows from being removed.",
        value=max(of_slots, default=0),
    )
    yield GaugeMetricFamily(
        "supervisor_notification_queue_ratio",
        "The part of the server's queue of notifications that is in use.",
        value=0.0 if server is None else server.notifications,
    )
    rows = {"jobs": 0} if server is None else {table.name.rpartition(".")[2]: table.dead for table in server.tables}
    yield _by(
        "supervisor_dead_rows", "Dead rows in the job tables on a PostgreSQL server; 0 with SQLite.", "table", rows
    )


def _by(
    name: str,
    words: str,
    labels: str | tuple[str, ...],
    values: Mapping[Any, float],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """A metric with one label, whose values are the keys, or with several, whose values are tuples."""
    family = kind(name, words, labels=[labels] if isinstance(labels, str) else labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(labels, str) else key, float(value))
    return family
