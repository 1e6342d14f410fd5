"""Migration tools leave our tables alone, configured as docs/queue.md shows it."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

import supervisor
from supervisor import Queue
from supervisor.cli import main
from supervisor.engine import open_engine
from tests.docs.markdown import ROOT, blocks, named, table
from tests.postgres_server import Databases

PAGE = ROOT / "docs" / "queue.md"


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        return {name for (name,) in rows}


def test_the_tables_named_are_those_that_are_made(
    queue: Queue, path: Path, postgres: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(path.parent))
    server = postgres.fresh_database()
    open_engine(server).database.migrate()
    with psycopg.connect(server) as connection:
        rows = connection.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND oid > 16383"
        )
        there = {name for (name,) in rows}
    assert tables(path) | there == supervisor.TABLES
    [prisma] = [block for block in blocks("ts", document=PAGE) if "external:" in block.text]
    assert set(re.findall(r'"(jobs?\w*)"', prisma.text)) == supervisor.TABLES


def shown(name: str) -> dict[str, Any]:
    """What a file of the page defines."""
    [block] = [block for block in blocks("python", document=PAGE) if block.file == name]
    found: dict[str, Any] = {}
    exec(compile(block.text, str(block), "exec"), found)
    return found


def test_alembics_autogenerate_proposes_nothing_for_them(queue: Queue, url: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table("orders", metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))
    engine = sqlalchemy.create_engine(url)
    metadata.create_all(engine)

    def proposed(metadata: Any, **options: Any) -> list[Any]:
        with engine.connect() as connection:
            found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
            return found

    include_name = shown("alembic_filter.py")["include_name"]
    assert {change[0] for change in proposed(metadata)} == {"remove_table", "remove_index"}
    assert proposed(metadata, include_name=include_name) == []
    [dropped] = proposed(sqlalchemy.MetaData(), include_name=include_name)
    assert (dropped[0], dropped[1].name) == ("remove_table", "orders")
    engine.dispose()


DJANGO = """
import django
from django.conf import settings
from django.core.management import call_command
databases = {name: {"ENGINE": "django.db.backends.sqlite3", "NAME": path} for name, path in PATHS.items()}
settings.configure(
    DATABASES=databases, DATABASE_ROUTERS=ROUTERS, INSTALLED_APPS=["django.contrib.contenttypes", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
call_command("makemigrations", "shop", verbosity=0)
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
for name in databases:
    call_command("migrate", database=name, verbosity=0)
"""


ROUTER = """
class JobsRouter:
    def allow_migrate(self, db, app_label, **hints):
        return False if db == "jobs" else None
"""


@pytest.mark.parametrize("apart", [False, True])
def test_djangos_migrations_leave_them_alone(queue: Queue, path: Path, apart: bool) -> None:
    pytest.importorskip("django")
    folder, ours = path.parent, tables(path)
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "models.py").write_text(
        "from django.db import models\nclass Order(models.Model):\n    number = models.IntegerField()\n"
    )
    (folder / "jobs_router.py").write_text(ROUTER)
    own = {"default": str(folder / "django.db"), "jobs": str(path)} if apart else {"default": str(path)}
    routers = ["jobs_router.JobsRouter"] if apart else []
    program = DJANGO.replace("PATHS", repr(own)).replace("ROUTERS=ROUTERS", f"ROUTERS={routers}")
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    new = tables(path) - ours
    assert ours < tables(path)
    # Django keeps its own record of migrations in every database that it is asked to migrate.
    assert new == ({"django_migrations"} if apart else {"django_migrations", "django_content_type", "shop_order"})
    assert queue.enqueue("tag") == 1


@pytest.mark.parametrize("gone", ["jobs", "job_runs", "job_moves", "job_since_crash"])
def test_a_table_that_was_dropped_is_named(
    gone: str, postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for url in (f"sqlite:///{tmp_path}/jobs.db", postgres.fresh_database()):
        open_engine(url).database.migrate()
        with contextlib.closing(open_engine(url).database.connect()) as connection, connection.write() as raw:
            raw.execute(f"DROP TABLE IF EXISTS {gone}{'' if 'sqlite' in url else ' CASCADE'}")
        there = gone == ("job_since_crash" if "sqlite" in url else "job_moves")  # of the other engine
        for words in (["migrate"], ["status"], ["enqueue", "tag"]):
            assert main(["--database", url, *words]) == (0 if there else 3)
            assert (f"these are gone: {gone}; stop all programs" in capsys.readouterr().err) != there


def test_the_page_has_every_method() -> None:
    public = {name for name in dir(Queue) if not name.startswith("_")}
    assert {name.partition("(")[0] for name in named(table("docs/queue.md", "methods"))} == public | {"Queue"}
