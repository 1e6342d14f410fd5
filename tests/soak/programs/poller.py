"""A program that knows nothing of us: it claims and settles by plain SQL.

poller.py DATABASE
"""

import sqlite3
import sys
import time

db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    row = db.execute(
        "UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending'"
        " AND type = 'foreign' LIMIT 1) RETURNING id"
    ).fetchone()
    if row:
        db.execute("UPDATE jobs SET status = 'done' WHERE id = ?", row)
    time.sleep(0.01)
