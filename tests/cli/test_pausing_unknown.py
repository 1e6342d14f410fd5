"""A slip in the name of a type is no pause."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

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
    ran = cli("scale", "greet", "2", "--host", "nowhere")
    assert ran.code == 2
    assert ran.errors() == [f"no supervisor runs on the host 'nowhere'; supervisors run on {socket.gethostname()}"]
    assert cli("scale", "greet", "2", "--host", "no where").code == 2


def test_a_size_for_all_replaces_those_of_single_hosts(cli: Run, database: Path) -> None:
    here = socket.gethostname()
    assert cli("scale", "greet", "2", "--host", here).out == f"pool greet now has 2 workers on {here}\n"
    assert cli("scale", "greet", "3").out == f"pool greet now has 3 workers, also on {here}\n"
    assert cli("scale", "greet", "2", "--host", here).code == 0
    assert cli("scale", "greet", "auto", "--host", here).out == f"pool greet now has 3 workers on {here}\n"
