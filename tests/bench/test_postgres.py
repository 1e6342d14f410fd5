"""The benchmark on PostgreSQL: what it runs, and what becomes of the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.goals import POSTGRES_GOALS
from bench.postgres import fences, measures, report
from bench.postgres.contestants import OURS, PEERS, Contestant
from bench.postgres.fences import Takeover
from bench.record import Absence, Key, Record
from tests.bench.conftest import empty
from tests.postgres_server import Server


@pytest.fixture
def record() -> Record:
    record = empty(held=60.0, versions={"PostgreSQL": "18"})
    for place, name in enumerate((OURS.name, *PEERS)):
        for workers in map(str, measures.WORKERS):
            record.add(Key("throughput", name, workers), "jobs/s", [40_000.0 / (place + 1)])
        record.add(Key("enqueue", name), "jobs/s", [1000.0])
        record.add(Key("latency", name, "2"), "ms", [1.0, 2.0])
        record.add(Key("latency after the call", name, "2"), "ms", [0.5, 1.0])
        record.add(Key("held back, at the end", name, "2"), "jobs/s", [38_000.0])
        record.add(Key("fenced", name, "1"), "refused", [1.0, float(name == OURS.name)])
    record.add(Key("steady", OURS.name, "2"), "%", [99.0])
    record.miss(Absence("back after", "pgqueuer", "2", "its workers have ended"))
    return record


def test_the_tables_have_every_contestant_and_why_a_figure_is_missing(record: Record) -> None:
    table = report.markdown(record)
    for one in (OURS, *PEERS.values()):
        assert table.count(f"| {one.title} |") == 3
    assert "- PgQueuer, batches of 500, back after: its workers have ended" in table
    assert table.count("| refused |") == 1
    assert table.count("| **written** |") == len(PEERS)  # once is enough


def test_the_goals_are_judged(record: Record) -> None:
    found = {goal.figure: goal.value(record) for goal in POSTGRES_GOALS}
    assert found["throughput, 2 workers, against graphile-worker with its local queue"] == pytest.approx(2.0)
    assert found["1,000 jobs a second while a transaction is held: the rate of the last minute"] == pytest.approx(99.0)
    assert found["the server restarts: back at work after"] is None
    assert found["a late result, while another worker has the job: 1 when it is refused, 0 when it is written"] == 1


@pytest.mark.server
@pytest.mark.timeout(180)
def test_a_run_without_peers_measures_ours(measured: Callable[..., Record]) -> None:
    series = measured("postgres", "--only", "latency").get("latency", OURS.name, "2")
    assert series is not None
    assert len(series.values) == 10


Probe = Callable[[Contestant, Takeover], float]


@pytest.fixture
def late_result(own_postgres: Callable[..., Server], tmp_path: Path) -> Probe:
    """1 if it was refused, 0 if it was written."""
    course = measures.Course(own_postgres(), tmp_path, held=0.0)

    def probe(contestant: Contestant, takeover: Takeover) -> float:
        with course.open(contestant) as queue:
            [value] = fences.measure(queue, takeover)["fenced"]
            return value

    return probe


@pytest.mark.timeout(300)
def test_a_late_result_of_ours_is_refused(late_result: Probe) -> None:
    assert late_result(OURS, fences.TAKEOVERS[OURS.name]) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_result_that_is_written_over_another_claim_is_seen(late_result: Probe) -> None:
    """As if attempts were all that tells two claims of ours apart: no result is matched against them."""
    claims = "SELECT id, attempts::text FROM jobs WHERE status = 'running'"
    again = Takeover(claims, ("UPDATE jobs SET attempts = attempts + 1 WHERE id = %(id)s",))
    assert late_result(OURS, again) == 0
