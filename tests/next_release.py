"""A release after this one: the same program, whose schema has one migration more on each engine. It adds something."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from supervisor.store.migrate import Migration, shipped

_ROOT = Path(__file__).parent.parent
ADDS = """-- Jobs have a colour.
ALTER TABLE jobs ADD COLUMN colour TEXT;
CREATE TABLE job_colours (name TEXT PRIMARY KEY);
CREATE INDEX jobs_colour ON jobs (colour) WHERE colour IS NOT NULL;
INSERT INTO job_colours (name) VALUES ('red');
"""


def plan(engine: str, sql: str = ADDS) -> list[Migration]:
    """Its schema."""
    known = shipped(f"supervisor.store.{engine}")
    version = known[-1].version + 1
    return [*known, Migration(version, f"{version:04}_colours.sql", sql)]


def made(folder: Path) -> Mapping[str, str]:
    """Put the program into a folder. Returns the environment in which `python -m supervisor` is that."""
    for package in ("supervisor", "handlers"):
        shutil.copytree(_ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for engine in ("sqlite", "postgres"):
        migrations = folder / "supervisor" / "store" / engine / "migrations"
        migrations.mkdir(exist_ok=True)
        (migrations / plan(engine)[-1].name).write_text(ADDS)
    return os.environ | {"PYTHONPATH": str(folder)}
