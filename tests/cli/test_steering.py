"""Pauses, sizes and schedules from the command line: what changes, and what is refused."""

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


def test_force_pauses_what_is_still_to_come_and_each_says_what_has_changed(cli: Run, database: Path) -> None:
    assert cli("pause", "gret", "--force").out == "gret is paused\n"
    assert cli("pause", "gret").out == "gret was already paused\n"
    assert cli("status", "--json").document["paused"] == ["gret"]
    assert cli("resume", "gret", "--json").document == {"type": "gret", "paused": False, "changed": True}
    assert cli("resume", "gret").out == "gret was not paused\n"


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


def test_scale_keeps_a_wish_until_it_is_given_back(cli: Run, database: Path) -> None:
    assert cli("scale", "greet", "3", "--json").document == {"pool": "greet", "workers": 3}
    assert execute(database, "SELECT name, value FROM job_controls") == [("greet", 3)]
    assert cli("scale", "greet", "auto").out == "pool greet is sized by the configuration again\n"
    assert execute(database, "SELECT name FROM job_controls") == []


def test_where_nothing_tells_the_pools_any_may_be_scaled_and_forgotten(cli: Run, database: Path) -> None:
    url = f"sqlite:///{database}"

    assert cli("scale", "anything", "3", "--database", url).code == 0
    assert cli("scale", "anything", "auto").code == 0


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


def plan(database: Path, name: str, type_: str = "greet") -> None:
    execute(database, "INSERT INTO job_schedules (name, timing, next_at, type) VALUES (?, '[]', 4e9, ?)", name, type_)


def test_a_schedule_is_listed_paused_run_and_resumed(cli: Run, database: Path) -> None:
    assert "there are no schedules" in cli("schedules", "list").out
    plan(database, "nightly")

    assert cli("schedules", "pause", "nightly").out == "the schedule nightly is paused\n"
    assert cli("schedules", "pause", "nightly").out == "the schedule nightly was already paused\n"
    assert "paused" in cli("schedules", "list").out
    assert "the schedule nightly is paused" in cli("status").out
    job = int(cli("schedules", "run", "nightly").out)
    assert execute(database, "SELECT type FROM jobs WHERE id = ?", job) == [("greet",)]
    assert cli("schedules", "resume", "nightly", "--json").document == {
        "name": "nightly",
        "paused": False,
        "changed": True,
    }
    [shown] = cli("schedules", "list", "--json").document
    assert (shown["name"], shown["paused_at"], shown["last_job"]) == ("nightly", None, job)


def test_a_schedule_that_is_unknown_or_enqueues_nothing_known_is_refused(cli: Run, database: Path) -> None:
    plan(database, "nightly", type_="")

    for command in ("pause", "resume", "run"):
        ran = cli("schedules", command, "nigtly")
        assert (ran.code, ran.errors()) == (2, ["there is no schedule 'nigtly'; the schedules are nightly"])
    ran = cli("schedules", "run", "nightly")
    assert ran.code == 4
    assert "known only when" in ran.err
    assert execute(database, "SELECT count(*) FROM jobs") == [(0,)]


def test_a_schedule_is_added_changed_and_removed(cli: Run, database: Path) -> None:
    plan(database, "nightly")
    keys = ("--type", "greet", "--every", "1h", "--payload", '{"a": [1]}', "--priority", "3", "--spread", "10m")
    assert cli("schedules", "add", "made", *keys).out == "the schedule made is added\n"
    assert (
        cli("schedules", "change", "made", "--unique-key", "k", "--spread", "").out == "the schedule made is changed\n"
    )
    assert cli("schedules", "change", "made", "--unique-key", "k").out == "the schedule made is as it was\n"
    row = "SELECT type, payload, priority, timing FROM job_schedules WHERE name = 'made'"
    assert execute(database, row) == [("greet", '{"a":[1]}', 3, '[null, 3600.0, "UTC"]')]
    listed = cli("schedules", "list").out.splitlines()
    assert (listed[-2].split()[-2:], listed[-1].split()[-1]) == (["run", "time"], "file")
    refused = cli("schedules", "add", "made", *keys)
    assert (refused.code, refused.errors()) == (4, ["there is a schedule made already; change or remove it"])
    refused = cli("schedules", "change", "nightly", "--every", "1h")
    assert refused.code == 4
    assert refused.errors() == ["the schedule nightly is in a configuration file; change it there, and reload"]
    refused = cli("schedules", "add", "other", "--type", "greet", "--cron", "daily")
    assert refused.code == 2
    assert refused.errors()[0].startswith("cron: 'daily' is not a cron line")
    assert "no pool takes" in cli("schedules", "add", "other", "--type", "gret", "--cron", "0 3 * * *").err
    assert cli("schedules", "remove", "made").out == "the schedule made is removed\n"
    assert cli("schedules", "remove", "made").code == 2
