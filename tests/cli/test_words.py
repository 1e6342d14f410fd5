"""What a user who errs is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import CONFIGURATION, Run, execute

OF_JOBS = ["jobs show", "jobs cancel", "jobs delete", "jobs retry", "logs", "logs -f"]


@pytest.mark.parametrize("command", OF_JOBS)
@pytest.mark.parametrize("text", ["abc", "0", str(2**63), "9" * 30, "0" * 10 + "1" + "0" * 30, "1e3", "٣"])
def test_what_is_no_id_is_told_so(cli: Run, database: Path, command: str, text: str) -> None:
    ran = cli(*command.split(), text)
    assert ran.code == 2
    [error] = ran.errors()
    assert error.endswith("is not a job's id")


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
