"""The goals beside model servers. A peer that was not measured sets no goal; one that never answers again loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.goals import Goal, highest, of, ratio
from bench.record import Record
from bench.serving import turns
from bench.serving.contestants import OURS, PEERS, PRELOAD, QUEUE, RUN, SPARE, THREE, WORKERS, Contestant

Value = Callable[[Record], float | None]


def _against(figure: str, case: str, one: Contestant, pick: Callable[[Sequence[float]], float], scale: float) -> Value:
    """Ours as a multiple of the peer with the best figure."""

    def value(record: Record) -> float | None:
        ratios = [ratio(figure, (one.name, case), (peer, case), scale)(record) for peer in PEERS]
        found = [one for one in ratios if one is not None]
        return pick(found) if found else None

    return value


def _sooner(one: Contestant) -> Value:
    """How many times sooner than the first of the peers."""

    def value(record: Record) -> float | None:
        ours = record.get("next answer", one.name, "1")
        theirs = [series.median for peer in PEERS if (series := record.get("next answer", peer, "1"))]
        return min(theirs) / ours.median if ours and theirs else None

    return value


def _unanswered(record: Record) -> float | None:
    """Requests of ours in all rounds and cases that a killed worker took along."""
    found = [
        sum(series.values)
        for name in OURS
        for case in WORKERS
        for figure in ("lost", "hung")
        if (series := record.get(figure, name, case))
    ]
    return sum(found) if found else None


def _share(record: Record) -> float | None:
    return ratio("turns", (QUEUE.name, turns.TWO), (QUEUE.name, turns.ALL), 100)(record)


def _pictures(one: Contestant, case: str) -> Goal:
    workers = "1 worker" if case == "1" else f"{case} workers"
    words = f"pictures a second, {workers}: {one.title}, against the fastest peer"
    return Goal(words, "≥", 1, "×", _against("pictures", case, one, min, 1))


def _request(one: Contestant, peer: str) -> Goal:
    words = f"a request at half load, median: {one.title}, against {PEERS[peer].title}"
    return Goal(words, "≤", 1, "×", ratio("request", (one.name, "1"), (peer, "1")))


SERVING_GOALS: tuple[Goal, ...] = (
    *(_pictures(one, case) for case in WORKERS for one in (QUEUE, RUN)),
    *(_request(one, peer) for one in (QUEUE, RUN) for peer in ("litserve", "mosec")),
    Goal(
        f"memory with three models: {PRELOAD.title}, against the smallest peer",
        "≤",
        50,
        " %",
        _against("memory", THREE, PRELOAD, max, 100),
    ),
    *(
        Goal(f"the only worker is killed, next answer: {one.title}, against the first peer", "≥", 10, "×", _sooner(one))
        for one in (RUN, PRELOAD, SPARE)
    ),
    Goal("requests of ours that a killed worker took along, or that hang", "≤", 0, "requests", _unanswered),
    Goal("three models of which two fit, pictures a second, against all fit", "≥", 80, " %", _share),
    Goal(
        "loads of a model in each min_residency",
        "≤",
        1,
        "loads",
        of("loads for each residency", QUEUE.name, turns.TWO, highest),
    ),
    Goal("jobs that failed meanwhile", "≤", 0, "jobs", of("failed", QUEUE.name, turns.TWO, highest)),
    Goal("jobs whose worker was killed meanwhile", "≤", 0, "jobs", of("killed", QUEUE.name, turns.TWO, highest)),
)
