"""A program that knows nothing of us: it claims and settles by plain SQL.

poller.py DATABASE
"""

import contextlib
import time
from typing import Any

from application import SERVER, Error, connect

CLAIM = (
    "UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending' AND type = 'foreign'"
    f" LIMIT 1{' FOR UPDATE SKIP LOCKED' if SERVER else ''}) AND status = 'pending' RETURNING id"
)
db: Any = None


def execute(sql: str) -> Any:
    """Again until it is through: several processes may be stopped with the lock in hand, or sessions end."""
    global db
    while True:
        with contextlib.suppress(Error):
            if db is None or (SERVER and db.closed):
                db = connect()
            return db.execute(sql).fetchone()
        time.sleep(0.05)


while True:
    row = execute(CLAIM)
    if row:
        execute(f"UPDATE jobs SET status = 'done' WHERE id = {row[0]} RETURNING id")
    time.sleep(0.01)
