"""Ours, as the enqueuing programs of others see it. BENCH_COMMIT says who commits, and how durably:

FULL        Queue.enqueue commits by itself: the job survives a power cut
NORMAL      on the program's own connection in autocommit mode, synchronous = NORMAL
INSERT      on such a connection, too, in SQL alone: what a program in any language does
APPLICATION the same connection, with a row of the application's in each transaction
"""

import json
import os
import sqlite3

from driver import drive

from supervisor import Queue

COMMIT = os.environ["BENCH_COMMIT"]
queue = Queue(f"sqlite:///{os.environ['BENCH_DATABASE']}", create=False)
connection = sqlite3.connect(os.environ["BENCH_DATABASE"], timeout=5, isolation_level=None)
connection.execute("PRAGMA synchronous = NORMAL")
connection.execute("CREATE TABLE IF NOT EXISTS pictures (id INTEGER PRIMARY KEY, path TEXT)")


def enqueue(type: str, payload: object) -> None:
    if COMMIT == "FULL":
        queue.enqueue(type, payload)
    elif COMMIT == "INSERT":
        connection.execute("INSERT INTO jobs (type, payload) VALUES (?, ?)", (type, json.dumps(payload)))
    elif COMMIT == "NORMAL":
        queue.enqueue(type, payload, connection=connection)
    else:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO pictures (path) VALUES ('cat.jpg')")
        queue.enqueue(type, payload, connection=connection)
        connection.execute("COMMIT")


def many(jobs: int) -> None:
    for _ in range(0, jobs, 1000):
        queue.enqueue_many("noop", [{}] * 1000)


drive(lambda: enqueue("noop", {}), lambda number: enqueue("arrive", {"number": number}), many)
