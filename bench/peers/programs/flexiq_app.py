"""FlexiQ on SQLite, in a process with so many threads. It sets WAL and synchronous = NORMAL itself.

fill JOBS | fill-many JOBS | feed JOBS | work THREADS
"""

import os
import sys

os.environ["FLEXIQ_LOG_LEVEL"] = "ERROR"  # else a line when a job begins and when it ends

import tally
from driver import drive
from flexiq import Queue

WORK = sys.argv[1] == "work"
queue = Queue(
    db_path=os.environ["BENCH_DATABASE"],
    workers=int(sys.argv[2]) if WORK else 1,
    scheduler_poll_interval_ms=1,
    scheduler_batch_size=64,
)


@queue.task(name="noop")
def noop():
    tally.mark()


@queue.task(name="arrive")
def arrive(number):
    tally.arrive(number)


def many(jobs):
    for at in range(0, jobs, 1000):
        noop.map([()] * min(1000, jobs - at))


if WORK:
    queue.run_worker()
else:
    drive(noop.delay, arrive.delay, many)
