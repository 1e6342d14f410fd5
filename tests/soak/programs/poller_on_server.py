"""The same as poller.py, on PostgreSQL.

poller_on_server.py URL
"""

import contextlib
import sys
import time
from typing import Any

import psycopg

CLAIM = (
    "UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending'"
    " AND type = 'foreign' LIMIT 1 FOR UPDATE SKIP LOCKED) AND status = 'pending' RETURNING id"
)
SETTLE = "UPDATE jobs SET status = 'done' WHERE id = %s RETURNING id"
db: Any = None


def execute(sql: str, *parameters: Any) -> Any:
    """Again until it is through: sessions end, and the server restarts."""
    global db
    while True:
        with contextlib.suppress(psycopg.Error):
            if db is None or db.closed:
                db = psycopg.connect(sys.argv[1], autocommit=True, connect_timeout=5)
            return db.execute(sql, parameters).fetchone()
        time.sleep(0.05)


while True:
    row = execute(CLAIM)
    if row:
        execute(SETTLE, *row)
    time.sleep(0.01)
