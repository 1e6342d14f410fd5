"""The goals: what each figure should be, and whether this run reached it."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench import ours
from bench.measurements import claim_cost, model_memory, warm_start
from bench.record import Record, Series

_SENSES: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, "≤": operator.le, "≥": operator.ge}
AUTO, ONE = ours.AUTO.name, ours.ONE.name


@dataclass(frozen=True)
class Goal:
    """`value` takes the figure from a run, or None where it was not measured; `sense` is how it must compare
    with the limit.
    """

    figure: str
    sense: str
    limit: float
    unit: str
    value: Callable[[Record], float | None]

    def reached(self, value: float) -> bool:
        return _SENSES[self.sense](value, self.limit)

    @property
    def words(self) -> str:
        return f"{self.sense} {shown(self.limit, self.unit)}" if self.limit else "never"


def shown(value: float, unit: str) -> str:
    """A figure for people: three digits, or all of a large one."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text}{unit}" if unit in ("×", " %") else f"{text} {unit}".strip()


def ratio(
    figure: str, one: tuple[str, str], other: tuple[str, str], scale: float = 1.0
) -> Callable[[Record], float | None]:
    """The ratio of two (contestant, case): the median of the rounds' ratios, because a machine drifts from round to
    round; of the medians, where a round of one is missing.
    """

    def value(record: Record) -> float | None:
        ours_, theirs = record.get(figure, *one), record.get(figure, *other)
        if not ours_ or not theirs:
            return None
        if len(ours_.rounds) != len(theirs.rounds):
            return ours_.median / theirs.median * scale
        pairs = zip(ours_.rounds, theirs.rounds, strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs) * scale

    return value


def of(figure: str, contestant: str, case: str, take: Callable[[Series], float]) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        series = record.get(figure, contestant, case)
        return take(series) if series else None

    return value


def median(series: Series) -> float:
    return series.median


def p95(series: Series) -> float:
    return series.percentile(0.95)


def p99(series: Series) -> float:
    return series.percentile(0.99)


def lowest(series: Series) -> float:
    return min(series.values)


def highest(series: Series) -> float:
    return series.highest


def total(series: Series) -> float:
    return sum(series.values)


def claim_growth(record: Record, kind: str) -> float | None:
    """A claim beside the most rows against one beside the fewest."""
    sizes = [rows for rows in claim_cost.SIZES if record.get("claim", "ours", f"{kind}: {rows}")]
    if len(sizes) < 2:
        return None
    return ratio("claim", ("ours", f"{kind}: {sizes[-1]}"), ("ours", f"{kind}: {sizes[0]}"))(record)


def _worst_growth(record: Record) -> float | None:
    found = [growth for kind in claim_cost.KINDS if (growth := claim_growth(record, kind)) is not None]
    return max(found) if len(found) == len(claim_cost.KINDS) else None


def _beats(title: str, contestant: str, other: str, times: float) -> Goal:
    value = ratio("throughput", (contestant, "2"), (other, "2"))
    return Goal(f"throughput, 2 workers, {title}", "≥", times, "×", value)


def _fairness(workers: int, limit: float) -> list[Goal]:
    goals = []
    for name, words in ((AUTO, "auto"), (ONE, "1")):
        where = f"a foreign INSERT beside {workers} saturated workers, prefetch = {words}"
        goals += [
            Goal(f"{where}: p95", "<", limit, "ms", of("foreign INSERT", name, str(workers), p95)),
            Goal(f"{where}: “database is locked”", "≤", 0, "times", of("locked", name, str(workers), total)),
        ]
    return goals


def _claim_wait(name: str, words: str) -> Goal:
    figure = f"longest claim wait, 12 saturated workers, prefetch = {words}"
    return Goal(figure, "<", 150, "ms", of("claim wait", name, "12", highest))


def _latency(mode: str, figure: str, middle: float, late: float) -> list[Goal]:
    where = f"enqueue → handler, idle, {mode}"
    return [
        Goal(f"{where}: median", "<", middle, "ms", of(figure, "ours", "4", median)),
        Goal(f"{where}: p99", "<", late, "ms", of(figure, "ours", "4", p99)),
    ]


def _against_floor(percentile: Callable[[Series], float]) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        own, bare = record.get("latency of an INSERT", "ours", "4"), record.get("wake-up floor", "floor", "2 hops")
        return percentile(own) / percentile(bare) if own and bare else None

    return value


def _scaling(record: Record) -> float | None:
    """What a second worker makes of one, as a share of what a second process makes of a bare loop; a machine where
    that is more than 1.9 × asks for no more.
    """
    own = ratio("images", ("ours", "2"), ("ours", "1"))(record)
    bare = ratio("images", ("floor", "2"), ("floor", "1"))(record)
    return own / min(bare, 1.9) * 100 if own and bare else None


GOALS: tuple[Goal, ...] = (
    _beats("prefetch = auto, against Huey", AUTO, "huey", 5),
    _beats("prefetch = auto, against plainjob", AUTO, "plainjob", 4),
    _beats("prefetch = 1, against Huey", ONE, "huey", 1.5),
    Goal(
        "throughput, 2 workers, prefetch = 1, against the bare loop with one transaction a job",
        "≥",
        60,
        " %",
        ratio("throughput", (ONE, "2"), ("floor-1", "1"), 100),
    ),
    *_latency("NORMAL", "latency", 1, 5),
    *_latency("FULL", "latency, synced", 5, 25),
    Goal(
        "an INSERT → handler: median, against the floor of a wake-up with two hops",
        "≤",
        1.5,
        "×",
        _against_floor(median),
    ),
    Goal("its p99, against that of the floor", "≤", 1.5, "×", _against_floor(p99)),
    _claim_wait(AUTO, "auto"),
    _claim_wait(ONE, "1"),
    *_fairness(2, 50),
    *_fairness(12, 250),
    Goal("worker killed → its job runs again: p99", "<", 100, "ms", of("rerun", "ours", "2", p99)),
    Goal(
        "a worker whose handler imports onnxruntime, forked warm: ready",
        "<",
        20,
        "ms",
        of("ready", "ours", warm_start.FORK, median),
    ),
    Goal(
        "nsfw, pictures a second through the queue with 1 worker, against a bare loop",
        "≥",
        97,
        " %",
        ratio("images", ("ours", "1"), ("floor", "1"), 100),
    ),
    Goal("nsfw, 2 workers against 1, against the same of bare loops (1.9 × at most)", "≥", 100, " %", _scaling),
    Goal(
        "4 workers with three models each and their template: PSS with preload_setup, against without",
        "≤",
        60,
        " %",
        ratio("model memory", ("ours", model_memory.BEFORE), ("ours", model_memory.AFTER), 100),
    ),
    Goal(
        "a worker with three models loaded before the fork is killed → its replacement is ready",
        "<",
        20,
        "ms",
        of("replaced", "ours", model_memory.BEFORE, median),
    ),
    Goal("a claim beside 10³ → 10⁶ other rows: the worst growth of its cost", "≤", 1.3, "×", _worst_growth),
    Goal(
        "idle: supervisor, maintainer, template and 4 workers",
        "≤",
        0.3,
        "% of a core",
        of("idle CPU", "ours", "4", median),
    ),
    Goal("idle: supervisor and maintainer together, USS", "≤", 60, "MB", of("own memory", "ours", "4", highest)),
    Goal(
        "a burst of 10,000 jobs on an idle, auto-scaled pool: at full size",
        "<",
        500,
        "ms",
        of("full size", "ours", "8", median),
    ),
)


def _on_postgres(title: str, other: str, times: float) -> Goal:
    return Goal(
        f"throughput, 2 workers, against {title}", "≥", times, "×", ratio("throughput", ("ours", "2"), (other, "2"))
    )


POSTGRES_GOALS: tuple[Goal, ...] = (
    _on_postgres("graphile-worker with its local queue", "graphile", 2),
    _on_postgres("PgQueuer", "pgqueuer", 4),
    _on_postgres("Oban for Python", "oban", 8),
    _on_postgres("Procrastinate", "procrastinate", 50),
    Goal(
        "enqueue → handler, idle: median from the commit",
        "<",
        3,
        "ms",
        of("latency after the call", "ours", "2", median),
    ),
    Goal(
        "1,000 jobs a second while a transaction is held: the rate of the last minute",
        "≥",
        90,
        " %",
        of("steady", "ours", "2", median),
    ),
    Goal("claims that take more than 20 ms meanwhile", "<", 1, " %", of("claims over 20 ms", "ours", "2", highest)),
    Goal("the server restarts: back at work after", "<", 5, "s", of("back after", "ours", "2", highest)),
    Goal(
        "a late result, while another worker has the job: 1 when it is refused, 0 when it is written",
        "≥",
        1,
        "",
        of("fenced", "ours", "1", lowest),
    ),
)
