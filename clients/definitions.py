"""Writes clients/node/definitions.json: what clients in other languages need of this package, from its only source.

    python clients/definitions.py

The file has the statements that create the tables, the statements that clients run, and the limits of what may be
enqueued. tests/clients/test_definitions.py fails when it is not up to date.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from pathlib import Path

from supervisor.domain import enqueueing, values
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.files import DatabaseFiles

FILE = Path(__file__).parent / "node" / "definitions.json"
_RUN = (
    "tables",
    "meta",
    "insert_job",
    "find_unique",
    "job",
    "job_status",
    "cancel_pending",
    "request_cancel",
)
# What `insert_job` of store/sqlite/inserting.py binds, in this order: drivers for JavaScript bind by name.
_VALUES = ("type", "payload", "priority", "requires", "scheduled_at", "max_attempts", "unique_key", "now")


def _named(sql: str) -> str:
    return re.sub(r"\?(\d)", lambda number: f":{_VALUES[int(number[1]) - 1]}", sql)


def definitions() -> str:
    """The text of the file. The tables are described as they are after all migrations."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        schema.bring_up_to_date(fresh, DatabaseFiles(Path("jobs.db")))
        parts = fresh.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY rowid"
        ).fetchall()
        flags = fresh.execute("SELECT key, value FROM job_meta WHERE key <> 'epoch' ORDER BY key").fetchall()
    insert = "INSERT INTO job_meta (key, value) VALUES"
    stamps = [f"{insert} ('{key}', '{value}')" for key, value in flags]
    return (
        json.dumps(
            {
                "about": "Written by clients/definitions.py; do not edit.",
                "schema": schema.shipped("supervisor.store.sqlite")[-1].version,
                "create": [sql for (sql,) in parts] + stamps + [QUERIES.make_epoch],
                "queries": {name: _named(getattr(QUERIES, name)) for name in _RUN},
                "limits": {
                    "type": values.TYPE.pattern,
                    "capability": values.CAPABILITY.pattern,
                    "payload_bytes": values.MAX_PAYLOAD_BYTES,
                    "meta_bytes": values.MAX_META_BYTES,
                    "depth": values.MAX_DEPTH,
                    "requires": values.MAX_REQUIRES,
                    "time": values.MAX_TIME,
                },
                "options": {
                    re.sub(r"_(.)", lambda found: found[1].upper(), name): {
                        "name": name,
                        "column": option.column,
                        "check": option.check.__name__,
                        "limits": option.limits,
                    }
                    for name, option in enqueueing.OPTIONS.items()
                    # They take more than a row of `jobs` and a look at its key.
                    if name not in ("after", "on_failed", "unique", "unique_for", "on_duplicate")
                },
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(definitions(), encoding="utf-8")
