"""A slip in the name of a type is no pause."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from supervisor.system.scoreboard import MOST_PAUSED

from .conftest import Run, execute


def paused(database: Path) -> list[str]:
    return [row[0] for row in execute(database, "SELECT name FROM job_controls WHERE kind = 'paused'")]


def test_a_type_that_nobody_has_is_refused_with_what_may_be_meant(cli: Run, database: Path) -> None:
    ran = cli("pause", "gret")
    assert ran.code == 2
    assert ran.errors() == ["no pool takes the type 'gret', and no job has it; did you mean greet?"]
    assert "--force" in ran.err
    assert paused(database) == []


def test_force_pauses_what_is_still_to_come(cli: Run, database: Path) -> None:
    assert cli("pause", "gret", "--force").out == "gret is paused\n"
    assert cli("pause", "gret").out == "gret was already paused\n"
    assert cli("resume", "gret").code == 0
    assert cli("resume", "gret").code == 0


@pytest.mark.parametrize("status", ["pending", "done", "cancelled"])
def test_a_type_of_the_configuration_or_of_a_job_is_paused(cli: Run, database: Path, status: str) -> None:
    execute(database, "INSERT INTO jobs (type, status) VALUES ('other', ?)", status)
    assert cli("pause", "greet").code == 0
    assert cli("pause", "other").code == 0
    assert sorted(paused(database)) == ["greet", "other"]


def test_without_a_configuration_pools_and_jobs_tell(cli: Run, database: Path) -> None:
    url = f"sqlite:///{database}"
    assert cli("pause", "greet", "--database", url).code == 2
    execute(database, "INSERT INTO jobs (type) VALUES ('greet')")
    assert cli("pause", "greet", "--database", url).code == 0


def test_an_unknown_host_is_refused_with_those_that_there_are(cli: Run, database: Path) -> None:
    here = socket.gethostname()
    for command in (("pause", "greet"), ("scale", "greet", "2"), ("resume", "greet")):
        ran = cli(*command, "--host", "nowhere")
        assert ran.code == 2
        assert ran.errors() == [f"no supervisor runs on the host 'nowhere'; supervisors run on {here}"]
    assert cli("pause", "greet", "--host", "no where").code == 2
    assert cli("pause", "greet", "--host", "nowhere", "--force").out == "greet is paused on nowhere\n"
    assert cli("resume", "greet", "--host", "nowhere").out == "greet is resumed on nowhere\n"


def test_what_is_paused_for_more_hosts_is_not_resumed_on_one(cli: Run, database: Path) -> None:
    here = socket.gethostname()
    assert cli("pause", "greet", "--host", "*").code == 0
    ran = cli("resume", "greet", "--host", here)
    assert ran.code == 4
    assert ran.errors() == [
        "greet is paused on all hosts that match *; `supervisor resume greet --host '*'` resumes it there"
    ]
    assert cli("pause", "greet").code == 0
    ran = cli("resume", "greet", "--host", here)
    assert ran.code == 4
    assert ran.errors() == ["greet is paused everywhere; `supervisor resume greet` resumes it"]
    assert cli("resume", "greet").out == "greet is resumed\n"
    assert cli("resume", "greet", "--host", here).out == f"greet was not paused on {here}\n"


def test_a_size_for_all_replaces_those_of_single_hosts(cli: Run, database: Path) -> None:
    here = socket.gethostname()
    assert cli("scale", "greet", "2", "--host", here).out == f"pool greet now has 2 workers on {here}\n"
    assert cli("scale", "greet", "3").out == f"pool greet now has 3 workers, also on {here}\n"
    assert cli("scale", "greet", "2", "--host", here).code == 0
    assert cli("scale", "greet", "auto", "--host", here).out == f"pool greet now has 3 workers on {here}\n"


def test_no_more_types_are_paused_on_single_hosts_than_workers_can_be_told(cli: Run, database: Path) -> None:
    for number in range(MOST_PAUSED):
        assert cli("pause", f"type-{number}", "--force", "--host", socket.gethostname()).code == 0
    ran = cli("pause", "greet", "--host", socket.gethostname())
    assert ran.code == 4
    assert ran.errors() == [f"{MOST_PAUSED} types are paused on single hosts already; more than these cannot be"]
    assert cli("pause", "greet").code == 0
