"""`meta` on the command line: given with a job, shown with it, and looked for by its tags."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.usefixtures("database")


def test_what_is_given_with_a_job_is_shown_with_it_and_found_by_its_tags(cli: Run) -> None:
    nightly = cli("enqueue", "greet", "--meta", '{"tags": ["nightly", "eu"], "trace": "4bf9"}').out.strip()
    other = cli("enqueue", "greet", "--meta", '{"tags": ["eu"]}').out.strip()
    cli("enqueue", "greet")
    assert "4bf9" in cli("jobs", "show", nightly).out
    assert json.loads(cli("jobs", "show", nightly, "--json").out)["meta"] == {
        "tags": ["nightly", "eu"],
        "trace": "4bf9",
    }

    def listed(*tags: str) -> list[str]:
        words = [word for tag in tags for word in ("--tag", tag)]
        return [str(job["id"]) for job in json.loads(cli("jobs", "list", *words, "--json").out)]

    assert listed("eu") == [other, nightly]
    assert listed("eu", "nightly") == [nightly]
    assert listed("none") == []


@pytest.mark.parametrize("meta", ["[1]", '"text"', "{", '{"a": NaN}', json.dumps({"a": "x" * 20_000})])
def test_what_is_no_small_object_is_refused_and_nothing_enqueued(cli: Run, meta: str) -> None:
    said = cli("enqueue", "greet", "--meta", meta)
    assert said.code == 2
    assert "meta" in said.err
    assert "no jobs" in cli("jobs", "list").out


def test_a_row_in_no_state_at_all_is_listed_shown_and_counted_around(cli: Run, database: Path) -> None:
    job = cli("enqueue", "greet").out.strip()
    cli("enqueue", "greet")
    with closing(sqlite3.connect(database, isolation_level=None)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("UPDATE jobs SET status = 'lost' WHERE id = 1")
    assert "quarantined" in cli("jobs", "list").out
    assert "'lost'" in cli("jobs", "show", job).out
    assert "1 pending" in cli("status").out
