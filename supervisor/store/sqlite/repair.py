"""Jobs with impossible ids get new ones: zero and below mean "no job" elsewhere, and behind the greatest id there is
room for no other, so that nobody could enqueue any more.

The table's CHECK refuses both but for the greatest, which somebody may well insert. So whoever meets a full sequence
calls this: every insertion of ours, the maintainer when it looks how many jobs there were, and the migration.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from supervisor.store.queries import Queries, load
from supervisor.store.sqlite.definition import quoted

SQL: Queries = load("supervisor.store.sqlite", "repair.sql")

GREATEST = 1 << 62  # as in the table's CHECK
ROOM = 1 << 40  # ids that have to be left after the latest


def exhausted(row: Sequence[int] | None) -> bool:
    """Whether ids are about to run out. The row is the result of `greatest_sequence`."""
    return row is not None and row[0] is not None and int(row[0]) > GREATEST - ROOM


def renumber(raw: sqlite3.Connection) -> list[tuple[int, int]]:
    """Give rows with impossible ids the next free ones, fix the sequence, and record it in job_errors.

    Inside the caller's transaction. What points at such a row, in whatever table, points at it afterwards. Returns
    (old id, new id).
    """
    bounds = {"last": GREATEST - ROOM}
    raw.execute("PRAGMA defer_foreign_keys = ON")
    [(latest,)] = raw.execute(SQL.latest_id, bounds).fetchall()
    for query in (SQL.move_errors, SQL.set_error_sequence):  # first: the records below go there, too
        raw.execute(query, bounds)
    pointing = raw.execute(SQL.pointing_here).fetchall()
    moved = []
    for new, (old,) in enumerate(raw.execute(SQL.impossible, bounds).fetchall(), latest + 1):
        raw.execute(SQL.move_job, {"old": old, "new": new})
        for table, column in pointing:
            raw.execute(SQL.move_pointer.format(table=quoted(table), column=quoted(column)), {"old": old, "new": new})
        raw.execute(SQL.move_last_job, {"old": old, "new": new})
        raw.execute(SQL.tell, {"old": old, "new": new})
        moved.append((old, new))
    raw.execute(SQL.set_sequence, bounds | {"latest": latest + len(moved)})
    return moved
