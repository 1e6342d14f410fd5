"""DBOS on SQLite, in a process with so many threads.

By itself it leaves SQLite's defaults, a rollback journal and synchronous = FULL; an engine of one's own is its
documented way to others. These are what the other peers on SQLite use.

fill JOBS | feed JOBS | work THREADS
"""

import contextlib
import os
import sqlite3
import sys
import threading
import time

import sqlalchemy
import tally
from dbos import DBOS, DBOSClient
from driver import drive

NAME = "bench"
URL = f"sqlite:///{os.environ['BENCH_DATABASE']}"
# The first two are what DBOS sets on an engine that it makes itself.
PRAGMAS = ("busy_timeout = 30000", "foreign_keys = ON", "synchronous = NORMAL")
QUEUE = {"polling_interval_sec": 0.01, "worker_concurrency": 100}  # claimed at once at the most


def use_wal():
    """The file remembers it. SQLite does not wait here for the other process, which may be making the tables."""
    with contextlib.closing(sqlite3.connect(os.environ["BENCH_DATABASE"])) as connection:
        while True:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
                return
            time.sleep(0.01)


def engine():
    use_wal()
    made = sqlalchemy.create_engine(URL)

    @sqlalchemy.event.listens_for(made, "connect")
    def connected(connection, _):
        connection.isolation_level = "IMMEDIATE"
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    return made


@DBOS.workflow(name="noop")
def noop():
    tally.mark()


@DBOS.workflow(name="arrive")
def arrive(number):
    tally.arrive(number)


def work(threads):
    DBOS(
        config={
            "name": NAME,
            "system_database_engine": engine(),
            "max_executor_threads": threads,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(NAME, **QUEUE)
    threading.Event().wait()


def enqueue(client, workflow, *arguments):
    client.enqueue({"queue_name": NAME, "workflow_name": workflow}, *arguments)


if sys.argv[1] == "work":
    work(int(sys.argv[2]))
else:
    DBOS.migrate(URL)
    client = DBOSClient(system_database_engine=engine(), application_name=NAME)
    client.register_queue(NAME, **QUEUE)
    drive(lambda: enqueue(client, "noop"), lambda number: enqueue(client, "arrive", number))
