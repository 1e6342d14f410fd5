"""What becomes of the figures: files, goals, tables and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench import ours, report
from bench.drawing import overview
from bench.goals import GOALS, Goal
from bench.measurements import claim_wait, throughput
from bench.peers import PEERS
from bench.record import Absence, Key, Record
from bench.trial import Session
from tests.bench.conftest import empty

AUTO, ONE = ours.AUTO.name, ours.ONE.name


@pytest.fixture
def record() -> Record:
    """A run in which Huey made 10,000 jobs a second and RQ was not to be had."""
    record = empty(versions={"Python": "3.11.7", "SQLite": "3.40.1"}, **{"file system": "ext4"})
    record.seconds["throughput"] = 12.34
    rates = {AUTO: [60_000, 50_000, 80_000], ONE: [12_000], "huey": [9_000, 10_000, 11_000], "plainjob": [20_000]}
    for name, values in rates.items():
        for value in values:
            record.add(Key("throughput", name, "2"), "jobs/s", [float(value)])
    record.add(Key("latency", "ours", "4"), "ms", [0.4, 0.5, 0.6, 7.0])
    record.add(Key("locked", AUTO, "2"), "INSERTs", [0.0])
    record.miss(Absence("", "rq", "", "Redis: there is no redis-server here; install the package redis-server"))
    return record


def goal(words: str) -> Goal:
    [found] = [goal for goal in GOALS if goal.figure == words]
    return found


def test_a_run_that_was_written_is_read_back_the_same(record: Record) -> None:
    again = Record.from_json(record.to_json())
    assert again.series == record.series
    assert again.absences == record.absences
    assert again.about == record.about
    assert again.to_json() == record.to_json()


def test_a_ratio_is_the_median_of_the_rounds_ratios(record: Record) -> None:
    value = goal("throughput, 2 workers, prefetch = auto, against Huey").value(record)
    assert value == 60_000 / 9_000  # the middle one of 6.67, 5 and 7.27


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        ("throughput, 2 workers, prefetch = auto, against Huey", True),  # 6.7 × where 5 is the goal
        ("throughput, 2 workers, prefetch = auto, against plainjob", False),  # 3 × where 4 is
        ("throughput, 2 workers, prefetch = 1, against Huey", False),  # 1.2 × where 1.5 is
        ("enqueue → handler, idle, NORMAL: median", True),
        ("enqueue → handler, idle, NORMAL: p99", False),  # one in four took 7 ms
        ("a foreign INSERT beside 2 saturated workers, prefetch = auto: “database is locked”", True),
    ],
)
def test_a_goal_says_whether_it_was_reached(record: Record, figure: str, reached: bool) -> None:
    one = goal(figure)
    value = one.value(record)
    assert value is not None
    assert one.reached(value) is reached
    line = next(line for line in report.markdown(record).splitlines() if line.startswith(f"| {figure} |"))
    assert line.endswith("| yes |" if reached else "| **no** |")


def test_what_was_not_measured_counts_as_neither(record: Record) -> None:
    unmeasured = [goal for goal in GOALS if goal.value(record) is None]
    table = report.markdown(record)
    assert unmeasured
    for one in unmeasured:
        assert f"| {one.figure} | {one.words} | – | not measured |" in table


def test_a_missing_peer_is_named_with_the_reason(record: Record) -> None:
    table = report.markdown(record)
    rows = [line for line in table.splitlines() if line.startswith("| RQ |")]
    assert len(rows) == 2  # of throughput and of latency, which were measured of others
    assert all("not measured: Redis: there is no redis-server here" in row for row in rows)
    assert "there is no redis-server here" in table.partition("## Not measured")[2]


def test_the_picture_is_valid_and_names_every_contestant(record: Record) -> None:
    picture = overview.draw(record)
    root = ElementTree.fromstring(picture)
    texts = {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "job-supervisor" in texts
    assert {peer.title for peer in PEERS.values()} <= texts
    assert "60,000" in texts


def test_a_peer_whose_workers_are_threads_has_no_claim_wait_but_a_throughput() -> None:
    session = Session(tuple(PEERS.values()), Path(), quick=False)
    waits = {trial.contestant for trial in claim_wait.trials(session)}
    assert waits == {AUTO, ONE, "huey", "plainjob"}
    threads = {name for name, peer in PEERS.items() if peer.threads}
    assert {"flexiq", "dbos"} <= threads
    assert threads <= {trial.contestant for trial in throughput.trials(session)}
