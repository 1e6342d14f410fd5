"""Huey on SQLite: no sync unless BENCH_COMMIT is FULL, no stored results, which is as fast as it goes."""

import os

import tally
from huey import SqliteHuey

synced = os.environ.get("BENCH_COMMIT") == "FULL"
huey = SqliteHuey("bench", filename=os.environ["BENCH_DATABASE"], fsync=synced, results=False)


@huey.task()
def noop():
    tally.mark()


@huey.task()
def arrive(number):
    tally.arrive(number)


if __name__ == "__main__":
    # Run as a program it enqueues for the consumer, which knows the tasks by this module's name.
    import huey_app
    from driver import drive

    drive(huey_app.noop, huey_app.arrive)
