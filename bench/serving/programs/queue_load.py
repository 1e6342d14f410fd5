"""Asks over the queue, from Python."""

import os

from load import drive

from supervisor import Queue

PATIENCE = 60.0
queue = Queue(os.environ["BENCH_URL"])


def connect():
    return lambda model, payload: queue.run(model, payload, timeout=PATIENCE)


if __name__ == "__main__":
    drive(connect)
