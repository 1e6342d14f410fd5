"""A new database for a test, copied: to make the tables takes longer than most tests of the store do."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import tempfile
from pathlib import Path

from supervisor.engine import open_engine


def make_tables(database: Path) -> None:
    """What the first use of a new file would make, with an epoch of its own. A file that exists is left alone."""
    if database.exists():
        return
    database.write_bytes(_tables())
    database.chmod(0o600)  # as ours are made
    with contextlib.closing(sqlite3.connect(database)) as raw, raw:
        raw.execute("UPDATE job_meta SET value = lower(hex(randomblob(8))) WHERE key = 'epoch'")


@functools.cache
def _tables() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "jobs.db")
        open_engine(f"sqlite:///{database}").database.migrate()
        return database.read_bytes()
