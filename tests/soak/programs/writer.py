"""A program that knows nothing of us: it inserts jobs in its own transactions, and holds the write lock for up to 2 s.

writer.py DATABASE ACKNOWLEDGED SEED

Every id is appended to ACKNOWLEDGED once its commit has returned: from then on the job must not be lost.
"""

import os
import random
import sqlite3
import sys
import time

database, acknowledged, seed = sys.argv[1:]
dice = random.Random(int(seed))
db = sqlite3.connect(database, timeout=30, isolation_level=None)
db.execute("PRAGMA synchronous = FULL")
db.execute("CREATE TABLE IF NOT EXISTS pictures (id INTEGER PRIMARY KEY, job INTEGER NOT NULL)")
book = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
while True:
    db.execute("BEGIN IMMEDIATE")
    waiting = db.execute("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'pending' LIMIT 500)").fetchone()[0]
    ids = []
    for _ in range(dice.choice([1, 1, 1, 20]) if waiting < 500 else 0):
        ids.append(db.execute("INSERT INTO jobs (type) VALUES ('quick')").lastrowid)
        db.execute("INSERT INTO pictures (job) VALUES (?)", (ids[-1],))
    time.sleep(dice.choice([0, 0, 0, 0, 0.05, 0.3, 2]))
    if dice.random() < 0.1:
        db.execute("ROLLBACK")
    else:
        db.execute("COMMIT")
        os.write(book, "".join(f"{job}\n" for job in ids).encode())
    time.sleep(dice.uniform(0, 0.3))
