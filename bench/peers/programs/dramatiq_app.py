"""Dramatiq on Redis, without results."""

import os

import dramatiq
import tally
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))


@dramatiq.actor
def noop():
    tally.mark()


@dramatiq.actor
def arrive(number):
    tally.arrive(number)


if __name__ == "__main__":
    from driver import drive

    drive(noop.send, arrive.send)
