"""PgQueuer: a process a worker, batches of 500, on asyncpg."""

import asyncio

import asyncpg
import tally
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from postgres_running import DSN, run


async def queries():
    return Queries(AsyncpgDriver(await asyncpg.connect(DSN)))


async def setup():
    await (await queries()).install()


async def work():
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(DSN)))

    @queuer.entrypoint("noop")
    async def noop(job):
        tally.mark()

    @queuer.entrypoint("arrive")
    async def arrive(job):
        tally.arrive(int(job.payload))

    @queuer.entrypoint("slow")
    async def slow(job):
        await asyncio.to_thread(tally.slow)

    await queuer.run(batch_size=500)


async def one(client):
    await client.enqueue("noop", None)


async def number(client, at):
    await client.enqueue("arrive", str(at).encode())


async def many(client, count):
    await client.enqueue(["noop"] * count, [None] * count, [0] * count)


async def slow(client):
    await client.enqueue("slow", None)


if __name__ == "__main__":
    run(setup, work, queries, one, number, many, slow)
