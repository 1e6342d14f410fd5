"""`enqueue` and what it promises."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Run, count, execute


def test_the_id_is_printed_and_nothing_else(cli: Run, database: Path) -> None:
    first, second = cli("enqueue", "greet", '{"name": "Ada"}'), cli("enqueue", "greet")

    assert (first.code, first.out, first.err) == (0, "1\n", "")
    assert second.out == "2\n"
    assert execute(database, "SELECT payload FROM jobs ORDER BY id") == [('{"name":"Ada"}',), ("{}",)]


def test_a_new_user_s_configured_database_is_made_at_the_first_job(cli: Run, project: Path) -> None:
    assert cli("enqueue", "greet").out == "1\n"

    assert (project / "jobs.db").stat().st_mode & 0o777 == 0o600


def test_every_option_reaches_its_column(cli: Run, database: Path) -> None:
    ran = cli(
        *("enqueue", "greet", "[1]", "--priority", "-5", "--at", "2030-01-31T08:00:00+01:00"),
        *("--max-attempts", "3", "--requires", "gpu,tag@2", "--unique-key", "k", "--json"),
    )

    assert ran.document == {"id": 1, "duplicate": False}
    columns = "payload, priority, scheduled_at, max_attempts, requires, unique_key"
    assert execute(database, f"SELECT {columns} FROM jobs") == [("[1]", -5, 1896073200.0, 3, "gpu tag@2", "k")]


def test_lists_may_be_given_in_parts(cli: Run, database: Path) -> None:
    for _ in range(3):
        cli("enqueue", "greet")
    assert cli("enqueue", "greet", "--after", "3,1", "--after", "2", "--requires", "gpu,cpu", "--requires", "tag@2").out

    assert execute(database, "SELECT requires FROM jobs WHERE id = 4") == [("cpu gpu tag@2",)]
    assert execute(database, "SELECT after_id FROM job_after ORDER BY 1") == [(1,), (2,), (3,)]


def test_a_duplicate_of_a_unique_key_prints_the_existing_id_and_says_so(cli: Run, database: Path) -> None:
    first, second = (cli("enqueue", "greet", "--unique-key", "cat") for _ in range(2))

    assert (first.out, first.err) == ("1\n", "")
    assert (second.code, second.out) == (0, "1\n")
    assert second.err == "note: job 1 has this key; no other job was enqueued\n"
    assert cli("enqueue", "greet", "--unique-key", "cat", "--json").document == {"id": 1, "duplicate": True}
    assert count(database) == 1


def test_a_duplicate_may_replace_the_job_or_be_a_conflict(cli: Run, database: Path) -> None:
    words = ("enqueue", "greet", '{"n": 2}', "--unique-key", "cat", "--unique", "pending", "--unique-for")
    assert cli(*words, "1h").code == 2
    assert cli(*words[:-1]).out == "1\n"
    assert cli("enqueue", "greet", "3", "--unique-key", "cat", "--on-duplicate", "replace").out == "1\n"
    refused = cli("enqueue", "greet", "--unique-key", "cat", "--on-duplicate", "error")

    assert (refused.code, refused.out) == (4, "")
    assert refused.err == "error: job 1 has this unique key; nothing was enqueued\n"
    assert execute(database, "SELECT payload, waiting_key FROM jobs") == [("3", "cat")]
    assert cli("enqueue", "greet", "-", "--unique", "pending", stdin="1\n").code == 2


def test_lines_of_standard_input_become_jobs_in_order(cli: Run, database: Path) -> None:
    ran = cli("enqueue", "greet", "-", "--priority", "7", stdin='\ufeff{"n": 1}\n\n"zwei ü"\r\n3')

    assert ran.out == "1\n2\n3\n"
    rows = execute(database, "SELECT payload, priority FROM jobs ORDER BY id")
    assert rows == [('{"n":1}', 7), ('"zwei ü"', 7), ("3", 7)]


def test_a_refusal_by_the_database_undoes_every_line(cli: Run, database: Path) -> None:
    execute(
        database,
        "CREATE TRIGGER no_threes BEFORE INSERT ON jobs WHEN NEW.payload = '3' "
        "BEGIN SELECT RAISE(ABORT, 'no threes'); END",
    )

    ran = cli("enqueue", "greet", "-", stdin="1\n2\n3\n")

    assert (ran.code, len(ran.errors())) == (3, 1)
    assert count(database) == 0


def test_options_before_the_command_count_too(cli: Run, tmp_path: Path, database: Path) -> None:
    assert cli("--database", f"sqlite:///{database}", "enqueue", "greet").code == 0
    assert cli("-c", "nope.toml", "enqueue", "greet", "-c", "supervisor.toml").code == 0
    assert count(database) == 2


def test_the_variable_names_the_configuration_where_the_folder_has_none(
    cli: Run, database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("SUPERVISOR_CONFIG", str(database.parent / "supervisor.toml"))

    assert cli("enqueue", "greet").code == 0
    assert count(database) == 1


def test_waiting_prints_the_result_of_a_finished_job(cli: Run, database: Path) -> None:
    finished_at_once(database, "done", result='{"greeting": "Hello"}')

    ran = cli("enqueue", "greet", "--wait")

    assert (ran.code, ran.out) == (0, '1\n{"greeting": "Hello"}\n')
    assert ran.err.startswith("note: no supervisor is running")


@pytest.mark.parametrize("status", ["failed", "cancelled", "quarantined"])
def test_waiting_for_a_job_that_does_not_succeed_fails(cli: Run, database: Path, status: str) -> None:
    finished_at_once(database, status, error="no\ngreeting\x1b[31m")

    ran = cli("enqueue", "greet", "--wait")

    assert (ran.code, ran.out) == (1, "1\n")
    ended = {"failed": "failed"}.get(status, f"was {status}")
    assert f"error: job 1 {ended}: no greeting\\x1b[31m\nhint: supervisor jobs show 1\n" in ran.err


def test_waiting_for_many_prints_their_results_in_order(cli: Run, database: Path) -> None:
    finished_at_once(database, "done", result="1")

    ran = cli("enqueue", "greet", "-", "--wait", "--json", stdin="1\n2\n")

    assert [(job["id"], job["status"]) for job in ran.document["jobs"]] == [(1, "done"), (2, "done")]
    for lines in ("", "\n \n"):
        assert cli("enqueue", "greet", "-", "--json", stdin=lines).document == {"ids": []}


def test_waiting_ends_at_its_timeout_and_the_job_stays(cli: Run, database: Path) -> None:
    ran = cli("enqueue", "greet", "--wait", "--timeout", "50ms")

    assert (ran.code, ran.out) == (1, "1\n")
    assert "error: job 1 has not finished within 50ms\n" in ran.err
    assert count(database) == 1


def finished_at_once(database: Path, status: str, *, result: str | None = None, error: str = "") -> None:
    """Another program that settles every job as soon as it is there."""
    stored = "NULL" if result is None else f"'{result}'"
    execute(
        database,
        f"CREATE TRIGGER finisher AFTER INSERT ON jobs BEGIN UPDATE jobs SET status = '{status}', "
        f"result = {stored}, last_error = '{error}' WHERE id = NEW.id; END",
    )


def test_a_type_that_no_pool_takes_is_told_and_enqueued_all_the_same(cli: Run, database: Path) -> None:
    ran = cli("enqueue", "gret", "{}")
    assert (ran.code, ran.out, ran.err) == (0, "1\n", "warning: no pool takes the type gret; did you mean greet?\n")
    assert cli("enqueue", "qqq").err == "warning: no pool takes the type qqq\n"
    assert cli("enqueue", "greet").err == ""
    assert cli("enqueue", "gret", "--json").document == {"id": 4, "duplicate": False}
    assert cli("enqueue", "gret", "--database", f"sqlite:///{database}").err == ""  # no configuration to ask


def test_what_is_given_with_a_job_is_shown_with_it_and_found_by_its_tags(cli: Run, database: Path) -> None:
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
def test_what_is_no_small_object_is_refused_and_nothing_enqueued(cli: Run, database: Path, meta: str) -> None:
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
