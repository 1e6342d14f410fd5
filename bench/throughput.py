"""No-op jobs a second, beside a bare one-transaction SQL loop in the same run.

    python bench/throughput.py [--jobs 100000] [--rounds 3] [--workers 2]

The queue is filled first. Ours is timed from the first job taken to the last recorded, so neither the
start of the processes nor their end counts. The floor is one process with one connection and no job
system at all: claim and completion in one transaction, a commit a job, on a lean table. The contestants
take turns, because machines drift: quote the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import statistics
import time

from common import installation, supervisor

from supervisor import Queue


def ours(prefetch: str, workers: int, jobs: int) -> float:
    """Jobs a second through the whole system."""
    pool = f'[pools.noop]\nhandler = "jobs:noop"\nworkers = {workers}\nprefetch = {prefetch}\n'
    pool += "max_jobs_per_worker = 10000000\n"
    with installation(pool) as folder:
        queue = Queue(f"sqlite:///{folder}/app.db")
        queue.enqueue_many("noop", [{}] * jobs)
        queue.close()
        with supervisor(folder, "--burst") as process:
            process.wait(600)
        with contextlib.closing(sqlite3.connect(folder / "app.db")) as connection:
            first, last, done = connection.execute(
                "SELECT min(started_at), max(completed_at), count(*) FROM jobs WHERE status = 'done'"
            ).fetchone()
        assert done == jobs, f"{done} of {jobs} jobs were done"
        return float(jobs / (last - first))


def floor(jobs: int) -> float:
    """Jobs a second of a bare loop: settle the last and claim the next in one transaction."""
    with (
        installation("") as folder,
        contextlib.closing(sqlite3.connect(folder / "floor.db", isolation_level=None)) as db,
    ):
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT)")
        db.execute("CREATE INDEX pending ON jobs (id) WHERE status = 'pending'")
        db.execute("BEGIN")
        db.executemany("INSERT INTO jobs (type, payload, status) VALUES ('noop', '{}', 'pending')", [()] * jobs)
        db.execute("COMMIT")
        last = 0
        began = time.perf_counter()
        for _ in range(jobs):
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE jobs SET status = 'done' WHERE id = ?", (last,))
            [(last,)] = db.execute(
                "UPDATE jobs SET status = 'running' WHERE id ="
                " (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT 1) RETURNING id"
            ).fetchall()
            db.execute("COMMIT")
        return jobs / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    slow_jobs = min(options.jobs, 30_000)
    contestants = {
        "floor: bare loop, one transaction a job": lambda: floor(slow_jobs),
        f'{options.workers} workers, prefetch = "auto"': lambda: ours('"auto"', options.workers, options.jobs),
        f"{options.workers} workers, prefetch = 1": lambda: ours("1", options.workers, slow_jobs),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name, measure in contestants.items():
            rates[name].append(measure())
    base = statistics.median(rates[next(iter(contestants))])
    print(f"{'':44}{'jobs/s (median)':>16}{'of the floor':>14}{'min':>10}{'max':>10}")
    for name, values in rates.items():
        middle = statistics.median(values)
        print(f"{name:44}{middle:16,.0f}{middle / base:13.2f}×{min(values):10,.0f}{max(values):10,.0f}")


if __name__ == "__main__":
    main()
