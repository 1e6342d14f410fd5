"""`supervisor adopt`: options, exit codes, what is printed."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.store.sqlite.adoptable import SHAPES

HERE = ("--database", "sqlite:///app.db")


@pytest.fixture
def table(cli: Run, tmp_path: Path) -> Path:
    SHAPES["monitoring"].make(tmp_path / "app.db", 12)
    return tmp_path / "app.db"


def test_a_plan_is_printed_and_nothing_is_changed(cli: Run, table: Path) -> None:
    before = table.read_bytes()
    ran = cli("adopt", "--plan", *HERE)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert "  data           read into payload; both are kept equal (proposed)" in lines
    assert "  locked_by      yours, kept as old_locked_by (proposed)" in lines
    assert "  type           as it is" in lines
    assert "states: completed = done, processing = running" in lines
    assert "3 running become pending" in lines
    assert "nothing was changed; without --plan this is done, after a backup" in lines
    assert table.read_bytes() == before
    assert [file.name for file in table.parent.iterdir()] == ["app.db"]


def test_a_plan_as_a_document_says_that_nothing_was_adopted(cli: Run, table: Path) -> None:
    plan = cli("adopt", "--plan", *HERE, "--json").document
    assert (plan["adopted"], plan["backup"], plan["rows"]) == (False, None, 12)
    done = cli("adopt", *HERE, "--json").document
    assert done["adopted"]
    assert Path(done["backup"]).is_file()
    assert {**plan, "adopted": True, "backup": done["backup"]} == done


def test_what_is_printed_for_the_configuration_is_valid(cli: Run, table: Path) -> None:
    with closing(sqlite3.connect(table, isolation_level=None)) as raw:
        raw.execute("UPDATE jobs SET type = 'Odd:Type/1' WHERE id = 1")
        raw.execute("UPDATE jobs SET type = 'odd-type.1' WHERE id = 2")
        raw.execute("UPDATE jobs SET type = '7' WHERE id = 3")
    text = cli("adopt", *HERE, "--json").document["configuration"]
    pools = tomllib.loads(text)["pools"]
    assert sorted(each.get("types", [name])[0] for name, each in pools.items()) == [
        *("7", "MY_JOB_TYPE", "Odd:Type/1", "caption", "nsfw", "odd-type.1", "tag"),
    ]
    functions = {each["handler"].partition(":")[2] for each in pools.values()}
    assert all(name.isidentifier() for name in functions)
    (table.parent / "supervisor.toml").write_text(text)
    (table.parent / "jobs.py").write_text("".join(f"def {name}(payload, ctx): ...\n" for name in functions))
    assert cli("check").code == 0, cli("check").err
    assert cli("doctor", *HERE).code == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--status", "processing"], "--status processing: write OLD=NEW"),
        (["--rename", "=payload"], "--rename =payload: write OLD=NEW"),
        (["--rename", "data=payload", "--rename", "data=result"], "data is payload already"),
        (["--rename", "data=payload", "--rename", "error=payload"], "another column becomes `payload` already"),
        (["--status", "processing=runing"], "did you mean running?"),
        (["--rename", "dat=payload"], "the table has no column `dat`; did you mean data?"),
    ],
)
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    cli: Run, table: Path, options: list[str], problem: str, plan: list[str]
) -> None:
    before = table.read_bytes()
    ran = cli("adopt", *plan, *HERE, *options)
    assert ran.code == 2
    [error] = ran.errors()
    assert problem in error
    assert table.read_bytes() == before
    assert [file.name for file in table.parent.iterdir()] == ["app.db"]


@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_table_that_cannot_be_adopted_is_exit_code_3_with_the_way_out(cli: Run, table: Path, plan: list[str]) -> None:
    with closing(sqlite3.connect(table, isolation_level=None)) as raw:
        raw.execute("UPDATE jobs SET status = 'paused', scheduled_for = 'soon' WHERE id = 1")
    ran = cli("adopt", *plan, *HERE)
    assert ran.code == 3
    assert "'paused' (1 row); say what it means with --status paused=pending" in ran.errors()[0]
    ran = cli("adopt", *plan, *HERE, "--status", "paused=cancelled")
    assert ran.code == 3
    assert "'soon' (1 row); --rename scheduled_for=" in ran.errors()[0]
    assert (
        cli("adopt", *plan, *HERE, "--status", "paused=cancelled", "--rename", "scheduled_for=scheduled_for").code == 0
    )


@pytest.mark.parametrize("options", [[], ["--plan"], ["--rename", "x=y"]])
def test_a_table_of_our_own_is_left_alone_and_said_to_be(cli: Run, table: Path, options: list[str]) -> None:
    assert cli("adopt", *HERE).code == 0
    with closing(sqlite3.connect(table)) as raw:
        before = list(raw.iterdump())
    files = sorted(file.name for file in table.parent.iterdir())
    ran = cli("adopt", *options, *HERE)
    assert (ran.code, ran.out) == (0, "the jobs table is job-supervisor's already; there is nothing to adopt\n")
    assert cli("adopt", *options, *HERE, "--json").document["adopted"] is False
    with closing(sqlite3.connect(table)) as raw:
        assert list(raw.iterdump()) == before
    assert sorted(file.name for file in table.parent.iterdir()) == files


def test_a_table_of_another_name_has_to_be_named(cli: Run, tmp_path: Path) -> None:
    SHAPES["node"].make(tmp_path / "app.db", 8)
    ran = cli("adopt", *HERE)
    assert ran.code == 3
    assert "there is no table `jobs` to adopt" in ran.errors()[0]
    assert cli("adopt", *HERE, "--table", "job_queue").code == 0
