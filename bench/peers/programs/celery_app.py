"""Celery on Redis, without results."""

import os

import tally
from celery import Celery

app = Celery("celery_app", broker=os.environ["BENCH_REDIS"])
app.conf.task_ignore_result = True
app.conf.worker_hijack_root_logger = False
app.conf.broker_connection_retry_on_startup = True


@app.task(name="noop")
def noop():
    tally.mark()


@app.task(name="arrive")
def arrive(number):
    tally.arrive(number)


if __name__ == "__main__":
    from driver import drive

    drive(noop.delay, arrive.delay)
