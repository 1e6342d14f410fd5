"""The same as writer.py, on PostgreSQL.

writer_on_server.py URL ACKNOWLEDGED SEED
"""

import contextlib
import os
import random
import sys
import time

import psycopg

url, acknowledged, seed = sys.argv[1:]
dice = random.Random(int(seed))
book = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def work(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS pictures (id serial PRIMARY KEY, job bigint NOT NULL)")
    db.commit()
    while True:
        found = db.execute("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 'pending' LIMIT 500) AS some")
        [(waiting,)] = found.fetchall()
        ids = []
        for _ in range(dice.choice([1, 1, 1, 20]) if waiting < 500 else 0):
            ids += [job for (job,) in db.execute("INSERT INTO jobs (type) VALUES ('quick') RETURNING id")]
            db.execute("INSERT INTO pictures (job) VALUES (%s)", (ids[-1],))
        time.sleep(dice.choice([0, 0, 0, 0, 0.05, 0.3, 2]))
        if dice.random() < 0.1:
            db.rollback()
        else:
            db.commit()
            os.write(book, "".join(f"{job}\n" for job in ids).encode())
        time.sleep(dice.uniform(0, 0.3))


while True:  # sessions end, and the server restarts
    with contextlib.suppress(psycopg.Error), psycopg.connect(url, connect_timeout=5) as connection:
        work(connection)
    time.sleep(0.05)
