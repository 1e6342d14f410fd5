"""Whatever is mistyped: one readable line, the right exit code, and nothing written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import CONFIGURATION, Run, count, execute

USAGE, DATABASE = 2, 3

WRONG_USAGE = {
    "no such command": ["frobnicate"],
    "no such option": ["jobs", "list", "--colour"],
    "no type": ["enqueue"],
    "too many arguments": ["enqueue", "greet", "{}", "{}"],
    "an empty type": ["enqueue", ""],
    "a type with control characters": ["enqueue", "a\x1b[2Jb\nc"],
    "a type from bytes that are no UTF-8": ["enqueue", "gr\udcff"],
    "a payload that is no JSON": ["enqueue", "greet", "{"],
    "an empty payload": ["enqueue", "greet", ""],
    "a payload of NaN": ["enqueue", "greet", "NaN"],
    "a payload with a lone surrogate": ["enqueue", "greet", '"\\ud800"'],
    "a payload from bytes that are no UTF-8": ["enqueue", "greet", '"\udcff"'],
    "a payload nested beyond all measure": ["enqueue", "greet", "[" * 50_000],
    "a number of too many digits": ["enqueue", "greet", "1" * 5000],
    "a payload over 1 MiB": ["enqueue", "greet", '"' + "x" * (1 << 20) + '"'],
    "a priority that is no number": ["enqueue", "greet", "--priority", "high"],
    "a huge priority": ["enqueue", "greet", "--priority", "9" * 30],
    "a delay without a unit": ["enqueue", "greet", "--delay", "10"],
    "a time that is none": ["enqueue", "greet", "--at", "tomorrow"],
    "a time without a zone": ["enqueue", "greet", "--at", "2030-01-01T00:00"],
    "a delay and a time": ["enqueue", "greet", "--delay", "1s", "--at", "2030-01-01T00:00Z"],
    "a capability that is none": ["enqueue", "greet", "--requires", "gpu,größe"],
    "what a failure of no jobs means": ["enqueue", "greet", "--on-failed", "run"],
    "a unique key that is too long": ["enqueue", "greet", "--unique-key", "k" * 1001],
    "one unique key for many jobs": ["enqueue", "greet", "-", "--unique-key", "k"],
    "a timeout without waiting": ["enqueue", "greet", "--timeout", "1s"],
    "a timeout that is none": ["enqueue", "greet", "--wait", "--timeout", "soon"],
    "a status that is none": ["jobs", "list", "--status", "lost"],
    "a limit of nothing": ["jobs", "list", "--limit", "0"],
    "nothing to retry": ["jobs", "retry"],
    "retry everything": ["jobs", "retry", "--all"],
    "retry what is done": ["jobs", "retry", "--all", "--status", "done"],
    "retry ids and all": ["jobs", "retry", "1", "--all", "--status", "failed"],
    "retry ids of a status": ["jobs", "retry", "1", "--status", "failed"],
    "cancel nothing": ["jobs", "cancel"],
    "delete nothing": ["jobs", "delete"],
    "delete what is pending": ["jobs", "delete", "--all", "--status", "pending"],
    "cancel a type without all": ["jobs", "cancel", "--type", "greet"],
    "pause a type that is none": ["pause", "Greet"],
    "resume a type that is none": ["resume", "a b"],
    "scale a pool that is not there": ["scale", "nope", "3"],
    "scale to a word": ["scale", "greet", "many"],
    "scale below zero": ["scale", "greet", "--", "-1"],
    "scale beyond all measure": ["scale", "greet", "100000"],
    "purge without an age": ["purge"],
    "purge by an age that is none": ["purge", "--older-than", "a week"],
    "purge what is not finished": ["purge", "--older-than", "7d", "--status", "pending"],
    "back up into no folder": ["backup", "nowhere/copy.db"],
    "restore a folder": ["restore", "."],
    "run a pool that is not there": ["run", "--pool", "nope"],
    "a database that is no URL": ["status", "--database", "jobs.db"],
    "a database in memory": ["status", "--database", "sqlite:///:memory:"],
    "a database's name with a NUL": ["status", "--database", "sqlite:///a\0b"],
    "no such configuration": ["status", "-c", "nope.toml"],
    "a folder as configuration": ["status", "-c", "."],
}


@pytest.mark.parametrize("arguments", WRONG_USAGE.values(), ids=WRONG_USAGE)
def test_wrong_usage_is_one_line_and_writes_nothing(cli: Run, database: Path, arguments: list[str]) -> None:
    ran = cli(*arguments)

    assert (ran.code, len(ran.errors())) == (USAGE, 1), ran
    assert ran.out == ""
    assert count(database) == 0
    assert ran.err.isascii() or "\x1b" not in ran.err


BAD_LINES = {
    "a line that is no JSON": b'{"a": 1}\n{"a": }\n',
    "a line that is no UTF-8": b'{"a": 1}\n"\xff"\n',
    "a line with a lone surrogate": b'{"a": 1}\n"\\udfff"\n',
    "a line of NaN": b"1\nNaN\n",
    "a line over 1 MiB": b'1\n"' + b"x" * (1 << 20) + b'"\n',
    "a line over all limits": b'1\n"' + b"x" * (9 << 20),
    "two values in a line": b"1\n2 3\n",
}


@pytest.mark.parametrize("lines", BAD_LINES.values(), ids=BAD_LINES)
def test_one_bad_line_of_many_is_named_and_no_job_enters(cli: Run, database: Path, lines: bytes) -> None:
    ran = cli("enqueue", "greet", "-", stdin=lines)

    assert ran.code == USAGE
    [error] = ran.errors()
    assert "line 2" in error
    assert ran.out == ""
    assert count(database) == 0


OPERATING = {
    "enqueue": ["enqueue", "greet"],
    "jobs list": ["jobs", "list"],
    "jobs show": ["jobs", "show", "1"],
    "jobs retry": ["jobs", "retry", "1"],
    "jobs cancel": ["jobs", "cancel", "1"],
    "jobs delete": ["jobs", "delete", "1"],
    "status": ["status"],
    "pause": ["pause", "greet"],
    "resume": ["resume", "greet"],
    "scale": ["scale", "greet", "1"],
    "reload": ["reload"],
    "purge": ["purge", "--older-than", "1d"],
    "backup": ["backup", "copy.db"],
    "adopt": ["adopt"],
}


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda path: None, "{}: the database does not exist"),
        (lambda path: path.write_text("not a database, " * 100), "the file is not an SQLite database"),
        (lambda path: path.mkdir(), ""),
    ],
    ids=["nothing", "text", "folder"],
)
@pytest.mark.parametrize("arguments", OPERATING.values(), ids=OPERATING)
def test_what_is_no_database_is_named_and_never_made_one(
    cli: Run, tmp_path: Path, arguments: list[str], made: Callable[[Path], object], problem: str
) -> None:
    made(tmp_path / "typo")
    before = sorted(tmp_path.rglob("*"))

    ran = cli(*arguments, "--database", "sqlite:///typo")

    [error] = ran.errors()
    assert ran.code == DATABASE
    assert problem.format(f"sqlite:///{tmp_path}/typo") in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [name for name in OPERATING if name not in ("backup", "adopt")])
def test_another_program_s_jobs_table_is_refused_with_a_way_out(cli: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, kind TEXT)")

    ran = cli(*OPERATING[name], "--database", "sqlite:///app.db")

    assert ran.code == DATABASE
    [error] = ran.errors()
    assert "supervisor adopt" in error
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema")]
    assert tables == ["jobs"]


@pytest.mark.parametrize("name", [name for name in OPERATING if name not in ("backup", "enqueue")])
def test_looking_at_an_application_s_database_changes_nothing_in_it(cli: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE pictures (id INTEGER PRIMARY KEY)")
    before = path.read_bytes()

    ran = cli(*OPERATING[name], "--database", "sqlite:///app.db")

    assert ran.code == DATABASE
    [error] = ran.errors()
    assert "supervisor migrate" in error or name == "adopt"
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["app.db"]


@pytest.mark.parametrize("arguments", OPERATING.values(), ids=OPERATING)
def test_every_fault_of_the_configuration_is_a_line(cli: Run, project: Path, arguments: list[str]) -> None:
    path = project / "supervisor.toml"
    path.write_text('databse = "sqlite:///x.db"\n[pools.greet]\nhandler = 3\nworker = 2\n')

    ran = cli(*arguments)

    assert ran.code == USAGE
    lines = ran.errors()
    assert [line.partition(" ")[0] for line in lines] == [f"supervisor.toml:{line}:" for line in (1, 3, 4)]
    assert not (project / "jobs.db").exists()


WRONG_DATABASES = ["app.db", "", "sqlite:app.db", "sqlite://app.db", "sqlite:///", "postgres:/x", "mysql://x/y", 5]
STARTING = {"run": ["run", "--burst"], "check": ["check"], "limit": ["limit", "greet"], "migrate": ["migrate"]}


@pytest.mark.parametrize("arguments", (OPERATING | STARTING).values(), ids=OPERATING | STARTING)
def test_a_configured_database_that_is_no_url_is_one_sentence(cli: Run, project: Path, arguments: list[str]) -> None:
    for wrong in WRONG_DATABASES:
        (project / "supervisor.toml").write_text(CONFIGURATION.replace('"sqlite:///jobs.db"', json.dumps(wrong)))
        ran = cli(*arguments)
        [error] = ran.errors()
        assert (ran.code, ran.out, error[:28]) == (USAGE, "", "supervisor.toml:2: database:")


def test_the_doctor_looks_at_no_database_if_the_configured_one_is_no_url(cli: Run, project: Path) -> None:
    (project / "supervisor.toml").write_text(CONFIGURATION.replace("sqlite:///", ""))
    found = cli("doctor", "--json").document["findings"]
    [fact] = [one["fact"] for one in found if one["about"] in ("configuration", "database")]
    assert fact.startswith("supervisor.toml:2: database: 'jobs.db' is not an SQLite or PostgreSQL URL")


def test_without_any_configuration_the_way_out_is_named(cli: Run, tmp_path: Path) -> None:
    ran = cli("status")

    assert ran.code == USAGE
    [error] = ran.errors()
    assert "supervisor init" in error


@pytest.mark.parametrize(
    ("code", "arguments"),
    [*((1, ["jobs", what, "7"]) for what in ("show", "retry", "cancel", "delete")), (4, ["reload"])],
)
def test_what_is_not_there_is_a_plain_failure(cli: Run, database: Path, arguments: list[str], code: int) -> None:
    ran = cli(*arguments)
    assert (ran.code, len(ran.errors())) == (code, 1)


def test_a_path_that_cannot_be_reached_is_one_line(cli: Run, tmp_path: Path) -> None:
    ran = cli("status", "--database", f"sqlite:////{'x' * 5000}/jobs.db")

    assert (ran.code, len(ran.errors())) == (DATABASE, 1)


def test_a_fault_of_ours_is_one_line_too(cli: Run, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import supervisor.ops.status

    def broken(*_: object) -> None:
        raise RuntimeError("on fire")

    monkeypatch.setattr(supervisor.ops.status, "gather", broken)

    ran = cli("status")

    assert ran.code == 1
    assert ran.errors() == ["unexpected RuntimeError: on fire"]
    monkeypatch.setenv("SUPERVISOR_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="on fire"):
        cli("status")


OF_JOBS = ["jobs show", "jobs cancel", "jobs delete", "jobs retry", "logs", "logs -f"]


@pytest.mark.parametrize("command", OF_JOBS)
@pytest.mark.parametrize("text", ["abc", "0", str(2**63), "9" * 30, "0" * 10 + "1" + "0" * 30, "1e3", "٣"])
def test_what_is_no_id_is_told_so(cli: Run, database: Path, command: str, text: str) -> None:
    ran = cli(*command.split(), text)
    assert ran.code == 2
    [error] = ran.errors()
    assert error.endswith("is not a job's id")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("jobs batch x", "'x' is not a batch's id"),
        ("jobs list --batch 0", "--batch: '0' is not a batch's id"),
        ("enqueue greet --after 1,abc", "--after: 'abc' is not a job's id"),
        ("enqueue greet --after=", "--after: '' is not a job's id"),
        ("enqueue greet --after 7", "after: there is no job 7"),
        ("enqueue greet --batch 7", "batch: there is no batch 7"),
        ("enqueue greet --expires-at 5", "--expires-at: '5' is not a time; write it like 2027-01-31T08:00+01:00"),
        ("enqueue greet --at 2030-01-01", "--at: it has no time zone; add Z or an offset like +01:00"),
        ("enqueue greet --expires-at 2020-01-01T00:00Z", "expires_at: the job would expire at once"),
        ("enqueue greet --expires-in 1h --delay 2h", "expires_in: the job would expire before it is due"),
    ],
)
def test_what_is_wrong_with_a_value_is_told_in_words(cli: Run, database: Path, arguments: str, said: str) -> None:
    ran = cli(*arguments.split())
    assert (ran.code, ran.errors()) == (2, [said])
    assert count(database) == 0


@pytest.mark.parametrize("command", OF_JOBS)
def test_a_negative_number_is_refused_in_one_sentence(cli: Run, database: Path, command: str) -> None:
    for words, error in ((["-5"], "no such option '-5'"), (["--", "-5"], "'-5' is not a job's id")):
        ran = cli(*command.split(), *words)
        assert (ran.code, ran.errors()) == (2, [error])


@pytest.mark.parametrize("words", [["status"], ["enqueue", "greet"]])
def test_without_a_configuration_the_database_can_be_named(cli: Run, project: Path, words: list[str]) -> None:
    hint = "hint: --database URL names the database; then no configuration is read\n"
    assert cli(*words, "--config", "nope.toml").err.endswith(hint)
    (project / "supervisor.toml").rename("other.toml")
    assert cli(*words).err.endswith(hint)
    (project / "supervisor.toml").write_text("[pools")
    ran = cli(*words)
    assert (ran.code, ran.err.endswith(hint)) == (2, True)
    assert "this is not valid TOML" in ran.errors()[0]


@pytest.mark.parametrize("words", [["reload"], ["reload", "--wait"], ["check"], ["run"]])
def test_who_needs_the_configuration_is_not_told_to_do_without(cli: Run, project: Path, words: list[str]) -> None:
    (project / "supervisor.toml").write_text(CONFIGURATION + "workrs = 2\n")
    ran = cli(*words)
    assert (ran.code, len(ran.errors())) == (2, 1)
    assert "did you mean workers?" in ran.err
    assert "hint:" not in ran.err


def test_very_many_workers_are_asked_about(cli: Run, database: Path) -> None:
    ran = cli("scale", "greet", "1000")
    assert (ran.code, ran.errors()) == (2, ["1000 is more than 100 workers"])
    assert "hint: add --yes" in ran.err
    assert cli("scale", "greet", "1000", "--yes").out == "pool greet now has 1000 workers\n"
    assert cli("scale", "greet", "100").code == 0


def test_crashes_are_named_in_a_list(cli: Run, database: Path) -> None:
    cli("enqueue", "greet")
    execute(database, "UPDATE jobs SET crashes = 3")
    assert "0, 3 crashes" in cli("jobs", "list").out
