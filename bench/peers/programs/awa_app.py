"""awa-pg: a process a worker, with 24 jobs at a time in its Rust core."""

import asyncio
import sys
from dataclasses import dataclass

import tally
from awa import AsyncClient
from postgres_running import DSN, run


@dataclass
class Noop:
    pass


@dataclass
class Arrive:
    number: int


@dataclass
class Slow:
    pass


async def setup():
    awa = AsyncClient(DSN)
    await awa.migrate()
    await awa.install_queue_storage()  # else the first start of a worker does it, unless there are jobs by then


async def work():
    client = AsyncClient(DSN)

    @client.task(Noop, queue="bench")
    async def noop(job):
        tally.mark()

    @client.task(Arrive, queue="bench")
    async def arrive(job):
        tally.arrive(job.args.number)

    @client.task(Slow, queue="bench")
    async def slow(job):
        await asyncio.to_thread(tally.slow)

    await client.start([("bench", 24)])
    await asyncio.Event().wait()


async def client():
    return AsyncClient(DSN)


async def one(awa):
    await awa.insert(Noop(), queue="bench")


async def number(awa, at):
    await awa.insert(Arrive(at), queue="bench")


async def many(awa, count):
    await awa.insert_many_copy([Noop()] * count, queue="bench")


async def slow(awa):
    await awa.insert(Slow(), queue="bench")


async def rescue(job):
    """Take a job from its worker, so that another one can claim it."""
    awa = await client()
    await awa.cancel(job)
    await awa.retry(job)


if __name__ == "__main__" and sys.argv[1] == "rescue":
    asyncio.run(rescue(int(sys.argv[2])))
elif __name__ == "__main__":
    run(setup, work, client, one, number, many, slow)
