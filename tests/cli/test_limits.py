"""Limits that operators set: at once, until they give them back."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.domain.limits import Limits
from supervisor.engine import open_engine

from .conftest import Run, execute


def states(database: Path) -> Counter[str]:
    return Counter(row[0] for row in execute(database, "SELECT status FROM jobs"))


def add(database: Path, count: int) -> None:
    for _ in range(count):
        execute(database, "INSERT INTO jobs (type) VALUES ('greet')")


def test_a_limit_holds_at_once_for_what_waits_and_is_given_back(cli: Run, database: Path) -> None:
    add(database, 4)
    assert cli("limit", "greet", "--max-running", "1").out == "greet: max_running 1, set by an operator\n"
    add(database, 1)
    assert states(database) == {"pending": 1, "held": 4}
    assert "0 of 1 running, 1 let through, 4 held (1 until due, 3 type)" in cli("status").out
    execute(database, "INSERT INTO jobs (type, scheduled_at) VALUES ('greet', unixepoch() + 4003)")
    assert "due in 66." in cli("jobs", "list", "--status", "held").out.splitlines()[1]
    execute(database, "DELETE FROM jobs WHERE id = 6")

    assert cli("limit", "greet", "--max-running", "3").code == 0
    assert states(database) == {"pending": 3, "held": 2}
    shown = {"type": "greet", "limits": {"max_running": 3, "on_conflict": "skip"}, "chosen": True}
    assert cli("limit", "greet", "--on-conflict", "skip", "--json").document == shown
    assert cli("limit", "--json").document == [shown]
    assert cli("limit", "greet", "--json").document == shown

    assert cli("limit", "greet", "--max-running", "none", "--on-conflict", "none").code == 0
    assert states(database) == {"pending": 5}
    assert cli("limit", "greet", "--reset").out == "greet: no limits\n"
    assert cli("limit").out == "no type has limits\n"


def test_configured_limits_that_no_supervisor_has_written_are_named(cli: Run, project: Path, database: Path) -> None:
    (project / "tags.py").write_text("from supervisor import task\n\n\n@task(rate='50/s')\ndef tag() -> None: ...\n")
    with (project / "supervisor.toml").open("a") as file:
        file.write('\n[pools.tags]\ntasks = ["tags"]\n[types.greet]\nmax_running = 2\n')
    ran = cli("limit")
    assert (ran.code, ran.out) == (0, "no type has limits\n")
    assert ran.err == "note: the configured limits of greet, tag hold from the next start or reload on\n"
    cli("limit", "greet", "--max-running", "1")
    assert cli("limit").err == "note: the configured limits of tag hold from the next start or reload on\n"
    assert cli("--database", f"sqlite:///{database}", "limit").err == ""


def test_every_limit_can_be_set_and_taken_away(cli: Run, database: Path) -> None:
    options = {
        "--max-running": "5",
        "--rate": "50/s",
        "--burst": "3",
        "--concurrency-per-key": "2",
        "--rate-per-key": "1/m",
        "--burst-per-key": "4",
        "--age-boost": "10m",
        "--breaker": "3/1h",
    }
    given = [word for pair in options.items() for word in pair]
    words = "max_running 5, rate 50/s, burst 3, concurrency_per_key 2, rate_per_key 1/m, burst_per_key 4, fair, "
    words += "age_boost 10m, breaker 3/60m, set by an operator"
    assert cli("limit", "greet", *given, "--fair").out == f"greet: {words}\n"
    none = [word for option in options for word in (option, "none")]
    assert cli("limit", "greet", *none, "--no-fair").out == "greet: no limits, set by an operator\n"


def test_limits_that_a_type_has_are_changed_though_nobody_knows_it(cli: Run, database: Path) -> None:
    assert cli("limit", "zzz", "--rate", "5/s", "--force").code == 0
    assert cli("limit", "zzz", "--rate", "none").out == "zzz: no limits, set by an operator\n"


def test_the_configuration_changes_nothing_that_an_operator_has_set(cli: Run, database: Path) -> None:
    with Path("supervisor.toml").open("a") as file:
        file.write("[types.greet]\nmax_running = 2\n")
    add(database, 3)
    assert cli("limit", "greet", "--max-running", "none").code == 0
    with closing(open_engine(f"sqlite:///{database}").maintenance()) as store:
        assert store.gates.configure({"greet": Limits(2)}, ["greet"], 0.0) == []
        assert states(database) == {"pending": 3}
        reset = {"type": "greet", "limits": {"max_running": 2}, "chosen": False}
        assert cli("limit", "greet", "--reset", "--json").document == reset
        assert states(database) == {"pending": 2, "held": 1}
        assert store.gates.configure({"greet": Limits(1)}, ["greet"], 0.0) == ["greet"]

    ran = cli("limit", "greet", "--reset", "--database", f"sqlite:///{database}")
    assert (ran.code, "after the next start or reload" in ran.err) == (0, True)
    assert states(database) == {"pending": 3}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gret", "--rate", "5/s"], "no pool takes the type 'gret', and no job has it; did you mean greet?"),
        (["gret"], "no pool takes the type 'gret', and no job has it; did you mean greet?"),
        (["gret", "--reset"], "no pool takes the type 'gret', and no job has it; did you mean greet?"),
        (["greet", "--rate", "-5/s"], "rate: '-5/s' is not a rate; write it like 50/s, 100/m or 1/5s"),
        (["greet", "--rate", "0/s"], "rate: '0/s' is not a rate; write it like 50/s, 100/m or 1/5s"),
        (["greet", "--rate", "5"], "rate: '5' is not a rate; write it like 50/s, 100/m or 1/5s"),
        (["greet", "--rate", "900000/s"], "rate: '900000/s' is too high; at most 100,000 starts a second"),
        (["greet", "--rate", "5/x"], "rate: '5/x' is not a rate; write it like 50/s, 100/m or 1/5s"),
        (["greet", "--rate", "fast"], "rate: 'fast' is not a rate; write it like 50/s, 100/m or 1/5s"),
        (["greet", "--max-running", "0"], "max_running: must be at least 1, not 0"),
        (["greet", "--max-running", "9" * 21], "max_running: must be at most 1000000, not 99999"),
        (["greet", "--max-running", "-1"], "max_running: must be at least 1, not -1"),
        (["greet", "--max-running", "9" * 5000], "max_running: must be a whole number, not '99999"),
        (["greet", "--breaker", "x/1m"], "breaker.failures: must be a whole number, not 'x'"),
        (["greet", "--breaker", "3/x"], "breaker.pause: 'x' is not a duration"),
        (["greet", "--burst", "3"], "burst: it has an effect only with a rate"),
        (["greet", "--fair"], "fair: it has an effect only if few jobs are admitted at a time: set max_running, too"),
        (["greet", "--reset", "--rate", "5/s"], "--reset stands alone"),
        (["--reset"], "name the type whose limits are to change"),
        (["gre et"], "type: 'gre et' is not a valid type"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(cli: Run, database: Path, given: list[str], said: str) -> None:
    add(database, 2)
    ran = cli("limit", *given)
    assert ran.code == 2
    assert ran.errors()[0].startswith(said)
    assert execute(database, "SELECT count(*) FROM job_limits") == [(0,)]
    assert states(database) == {"pending": 2}


def test_force_limits_what_is_still_to_come(cli: Run, database: Path) -> None:
    assert cli("limit", "later", "--max-running", "1", "--force").code == 0
    assert "later" in cli("status").out
