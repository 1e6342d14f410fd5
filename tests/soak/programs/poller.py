"""A program that knows nothing of us: it claims and settles by plain SQL.

poller.py DATABASE
"""

import contextlib
import sqlite3
import sys
import time
from typing import Any

db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)


def execute(sql: str, *parameters: Any) -> Any:
    """Again until it is through: several processes may be stopped with the lock in hand, one after the other."""
    while True:
        with contextlib.suppress(sqlite3.OperationalError):
            return db.execute(sql, parameters).fetchone()


while True:
    row = execute(
        "UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending'"
        " AND type = 'foreign' LIMIT 1) RETURNING id"
    )
    if row:
        execute("UPDATE jobs SET status = 'done' WHERE id = ?", *row)
    time.sleep(0.01)
