"""The configuration: the database's address."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\n'


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration's path, as a user in its folder would give it."""
    monkeypatch.chdir(tmp_path)
    return Path("supervisor.toml")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///jobs.db", "sqlite:///{folder}/jobs.db"),
        ("sqlite:///./data/jobs.db", "sqlite:///{folder}/data/jobs.db"),
        ("sqlite:///../jobs.db", "sqlite:///{folder.parent}/jobs.db"),
        ("sqlite:////srv/my jobs.db", "sqlite:////srv/my jobs.db"),
    ],
)
def test_the_database_s_path_starts_at_the_file_s_folder(tmp_path: Path, toml: Path, url: str, expected: str) -> None:
    (tmp_path / "sub").mkdir()

    path = Path("sub/supervisor.toml")
    path.write_text(f'database = "{url}"\n{POOL}')

    assert load(path).database == expected.format(folder=tmp_path / "sub")


def test_a_database_of_the_command_line_starts_at_the_current_folder(tmp_path: Path, toml: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = Path("sub/supervisor.toml")
    path.write_text(f'database = "postgresql://replaced"\n{POOL}')

    assert load(path, database="sqlite:///x.db").database == f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(ConfigError) as caught:
        load(path, database="x.db")
    assert caught.value.problems == [
        "--database: 'x.db' is not an SQLite or PostgreSQL URL; write it like sqlite:///./jobs.db or "
        "postgresql://user@host/database"
    ]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql:user:secret@host/db", "'…@host/db' is not an SQLite or PostgreSQL URL"),
        ("sqlite://", "in-memory"),
        ("sqlite:///", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
        ("sqlite:///file:x?mode=memory", "in-memory"),
        ("sqlite://jobs.db", "is not an SQLite or PostgreSQL URL"),
        ("jobs.db", "is not an SQLite or PostgreSQL URL"),
        ("", "is not an SQLite or PostgreSQL URL"),
        ("mysql://user:secret@host/db", "'mysql://…@host/db' is not an SQLite or PostgreSQL URL; write it like"),
        ("mysql://host/db?password=secret", "'mysql://host/db?…' is not an SQLite or PostgreSQL URL"),
        ("postgresq://user:secret@host/db", "is not an SQLite or PostgreSQL URL"),
        ("pgsql://host/db", "is not an SQLite or PostgreSQL URL"),
        ("sqllite:///jobs.db", "is not an SQLite or PostgreSQL URL"),
        (
            "postgresql+psycopg://user:secret@host/db",
            "'postgresql+psycopg://…@host/db' is not an SQLite or PostgreSQL URL",
        ),
        ("sqlite:///jobs.db?mode=ro", "leave out"),
        ("sqlite:///folder/", "is not the name of a file"),
        ("sqlite:///a\\u0000b", "is not the name of a file"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(toml: Path, url: str, words: str) -> None:
    toml.write_text(f'database = "{url}"\n{POOL}')

    with pytest.raises(ConfigError) as caught:
        load(toml)

    (problem,) = caught.value.problems
    assert problem.startswith("supervisor.toml:1: database: ")
    assert words in problem
    assert "secret" not in problem
