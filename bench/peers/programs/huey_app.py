"""Huey on SQLite: no sync, no stored results, which is as fast as it goes."""

import os

import tally
from huey import SqliteHuey

huey = SqliteHuey("bench", filename=os.environ["BENCH_DATABASE"], fsync=False, results=False)


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
