"""The benchmark on PostgreSQL: what it runs, and what becomes of the figures."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench.goals import POSTGRES_GOALS
from bench.postgres import measures, report
from bench.postgres.contestants import OURS, PEERS
from bench.record import Absence, Key, Record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def record() -> Record:
    about = {"made": "today", "cores": 2, "processor": "one", "memory": "24 GiB", "kernel": "Linux", "load before": 0.1}
    record = Record(about | {"rounds": 1, "quick": False, "held": 60.0, "versions": {"PostgreSQL": "18"}})
    for place, name in enumerate((OURS.name, *PEERS)):
        for workers in map(str, measures.WORKERS):
            record.add(Key("throughput", name, workers), "jobs/s", [40_000.0 / (place + 1)])
        record.add(Key("enqueue", name), "jobs/s", [1000.0])
        record.add(Key("latency", name, "2"), "ms", [1.0, 2.0])
        record.add(Key("latency after the call", name, "2"), "ms", [0.5, 1.0])
        record.add(Key("held back, at the end", name, "2"), "jobs/s", [38_000.0])
    record.miss(Absence("back after", "pgqueuer", "2", "its workers have ended"))
    return record


def test_the_tables_have_every_contestant_and_why_a_figure_is_missing(record: Record) -> None:
    table = report.markdown(record)
    for one in (OURS, *PEERS.values()):
        assert table.count(f"| {one.title} |") == 3
    assert "- PgQueuer, batches of 500, back after: its workers have ended" in table


def test_the_goals_are_judged(record: Record) -> None:
    found = {goal.figure: goal.value(record) for goal in POSTGRES_GOALS}
    assert found["throughput, 2 workers, against graphile-worker with its local queue"] == pytest.approx(2.0)
    assert found["rate at the end of a held transaction, against that without one"] == pytest.approx(95.0)
    assert found["the server restarts: back at work after"] is None


def test_the_picture_is_valid_and_names_every_contestant(record: Record) -> None:
    text = "".join(ElementTree.fromstring(report.picture(record)).itertext())
    for one in (OURS, *PEERS.values()):
        assert one.title.partition(",")[0] in text


@pytest.mark.timeout(180)
def test_a_run_without_peers_measures_ours(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "bench" / "run_postgres.py"),
        "--quick",
        "--peers",
        "none",
        "--only",
        "latency",
    ]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = Record.from_json((tmp_path / "postgres.json").read_text())
    series = written.get("latency", OURS.name, "2")
    assert series is not None
    assert len(series.values) == 10
