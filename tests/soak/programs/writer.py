"""A program that knows nothing of us: it inserts jobs in its own transactions, and holds SQLite's write lock for 2 s.

writer.py DATABASE ACKNOWLEDGED SEED

Every id is appended to ACKNOWLEDGED once its commit has returned: from then on the job must not be lost.
"""

import contextlib
import os
import random
import sys
import time
from typing import Any

from application import SERVER, Error, connect

_, acknowledged, seed = sys.argv[1:]
dice = random.Random(int(seed))
book = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def work(db: Any) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS pictures (job bigint NOT NULL)")
    while True:
        db.execute("BEGIN" if SERVER else "BEGIN IMMEDIATE")
        found = db.execute("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'pending' LIMIT 500) AS some")
        [(waiting,)] = found.fetchall()
        ids = []
        for _ in range(dice.choice([1, 1, 1, 20]) if waiting < 500 else 0):
            ids += [job for (job,) in db.execute("INSERT INTO jobs (type) VALUES ('quick') RETURNING id").fetchall()]
            db.execute(f"INSERT INTO pictures (job) VALUES ({ids[-1]})")
        time.sleep(dice.choice([0, 0, 0, 0, 0.05, 0.3, 2]))
        if dice.random() < 0.1:
            db.execute("ROLLBACK")
        else:
            db.execute("COMMIT")
            os.write(book, "".join(f"{job}\n" for job in ids).encode())
        time.sleep(dice.uniform(0, 0.3))


while True:
    with contextlib.suppress(Error), contextlib.closing(connect()) as connection:
        work(connection)
    time.sleep(0.05)
