"""A server that cannot be used gets one sentence and exit code 3; a URL that is none, 2."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from supervisor.cli import main
from tests.postgres_server import Databases


@pytest.fixture
def url(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return postgres.fresh_database()


@pytest.mark.parametrize("command", [["migrate"], ["status"], ["enqueue", "tag"], ["jobs", "list"]])
def test_a_server_that_cannot_be_used_gets_one_sentence(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    at = urlsplit(url)
    where = f"{at.hostname}:{at.port}"
    for wrong, words, code in (
        ("postgresql:/x", "is not an SQLite or PostgreSQL URL", 2),
        (f"postgresql://{where}/x?nonsense=1", "nonsense", 3),
        ("postgresql://nobody.invalid/x", "nobody.invalid", 3),
        (f"postgresql://{at.hostname}:1/x", f"postgresql://{at.hostname}:1/x: Connection refused\n", 3),
        (f"postgresql://{at.hostname}:1,{at.hostname}:2/x", "2/x: Connection refused\n", 3),
        ("postgresq://nobody:wrong@x/y", "is not an SQLite or PostgreSQL URL", 2),
        ("mysql+psycopg://nobody:wrong@x/y", "is not an SQLite or PostgreSQL URL", 2),
        (
            f"postgresql://{at.username}:{at.password}@{where}{at.path}?options=-csearch_path%3Dno_such",
            "there is no schema no_such; create it with CREATE SCHEMA, or correct the search path",
            3,
        ),
        (f"postgresql://{at.username}:wrong@{where}{at.path}", "password authentication failed", 3),
        (f"postgresql://{at.username}:{at.password}@{where}/no_such", 'database "no_such" does not exist', 3),
    ):
        assert main(["--database", wrong, *command]) == code, wrong
        printed = capsys.readouterr()
        assert words in printed.err
        assert printed.out == ""
        assert len([line for line in printed.err.splitlines() if line.startswith("error: ")]) == 1
        assert "wrong" not in printed.err.replace("wrong usage", "")  # no password is shown


def test_tables_of_another_program_are_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE jobs (id int)")
    for command in (["migrate"], ["status"], ["enqueue", "tag"]):
        assert main(["--database", url, *command]) == 3
        assert "`jobs` table of another program" in capsys.readouterr().err


def test_a_user_that_may_create_no_tables_is_told_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = urlsplit(url)
    name = f"user_{at.path[1:]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
        try:
            assert main(["--database", f"postgresql://{name}:secret@{at.hostname}:{at.port}{at.path}", "migrate"]) == 3
        finally:
            connection.execute(f"DROP ROLE {name}".encode())
    assert "permission denied" in (printed := capsys.readouterr().err)
    assert "this user lacks a right; docs/deploying/several-machines.md lists who needs which" in printed


def test_a_server_that_is_too_old_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("supervisor.store.postgres.connection.MINIMUM_SERVER", 10**7)
    assert main(["--database", url, "migrate"]) == 3
    assert "the server is PostgreSQL" in capsys.readouterr().err


def test_check_misses_the_driver_before_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.py").write_text("def greet(payload, ctx): ...\n")
    Path("supervisor.toml").write_text(
        'database = "postgresql://127.0.0.1:1/x"\n[pools.greet]\nhandler = "jobs:greet"\n'
    )
    assert main(["check"]) == 0
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["check"]) == 2
    assert "supervisor.toml:1: database: PostgreSQL needs the driver psycopg" in capsys.readouterr().err
