"""How long another program's INSERT takes beside saturating workers.

    python bench/fairness.py [--seconds 8]

The INSERT is made on a plain connection with SQLite's usual busy timeout of 5 s, which knows nothing of
our writers' lock. A starved one would end in "database is locked".
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import time

from common import installation, percentile, supervisor, until

from supervisor import Queue


def measure(workers: int, prefetch: str, seconds: float) -> None:
    pool = f'[pools.noop]\nhandler = "jobs:noop"\nworkers = {workers}\nprefetch = {prefetch}\n'
    pool += "max_jobs_per_worker = 10000000\n"
    with installation(pool) as folder:
        queue = Queue(f"sqlite:///{folder}/app.db")
        queue.enqueue_many("noop", [{}] * int(seconds * 80_000))
        queue.close()
        plain = sqlite3.connect(folder / "app.db", timeout=5, isolation_level=None)
        with supervisor(folder) as process, contextlib.closing(plain):
            until(lambda: done(plain) > 0)
            waits, locked, first, began = [], 0, done(plain), time.monotonic()
            while time.monotonic() < began + seconds:
                before = time.monotonic()
                try:
                    plain.execute("INSERT INTO jobs(type) VALUES ('other')")
                except sqlite3.OperationalError:
                    locked += 1
                waits.append((time.monotonic() - before) * 1000)
                time.sleep(0.005)
            rate = (done(plain) - first) / (time.monotonic() - began)
            process.kill()
    print(
        f"{workers:3} workers, prefetch = {prefetch:6}  {len(waits):5} INSERTs: "
        f"median {percentile(waits, 0.5):6.1f} ms   p95 {percentile(waits, 0.95):6.1f} ms   "
        f"max {max(waits):6.0f} ms   locked {locked}   beside {rate:,.0f} jobs/s"
    )


def done(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM jobs WHERE status = 'done'").fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    for workers in (2, 12):
        for prefetch in ('"auto"', "1"):
            measure(workers, prefetch, options.seconds)


if __name__ == "__main__":
    main()
