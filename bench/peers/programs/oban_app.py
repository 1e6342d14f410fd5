"""Oban for Python: a process a worker, with 50 jobs at a time."""

import asyncio

import tally
from oban import Oban, worker
from oban.schema import install
from postgres_running import DSN, run


@worker(queue="bench")
class Noop:
    async def process(self, job):
        tally.mark()


@worker(queue="bench")
class Arrive:
    async def process(self, job):
        tally.arrive(job.args["number"])


@worker(queue="bench")
class Slow:
    async def process(self, job):
        await asyncio.to_thread(tally.slow)


async def setup():
    await install(await Oban.create_pool(DSN))


async def work():
    pool = await Oban.create_pool(DSN, min_size=2, max_size=10)
    async with Oban(pool=pool, queues={"bench": 50}):
        await asyncio.Event().wait()


async def client():
    return Oban(pool=await Oban.create_pool(DSN, min_size=1, max_size=2))


async def one(oban):
    await oban.enqueue(Noop.new({}))


async def number(oban, at):
    await oban.enqueue(Arrive.new({"number": at}))


async def many(oban, count):
    await oban.enqueue_many(*(Noop.new({}) for _ in range(count)))


async def slow(oban):
    await oban.enqueue(Slow.new({}))


if __name__ == "__main__":
    run(setup, work, client, one, number, many, slow)
