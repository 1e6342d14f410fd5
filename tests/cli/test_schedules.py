"""Schedules from the command line."""

from __future__ import annotations

from pathlib import Path

from .conftest import Run, execute


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
