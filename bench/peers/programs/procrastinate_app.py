"""Procrastinate: a process a worker, with 24 jobs at a time, on psycopg."""

import asyncio

import procrastinate
import tally
from postgres_running import DSN, run

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DSN, min_size=2, max_size=4))


@app.task(name="noop", queue="bench")
async def noop():
    tally.mark()


@app.task(name="arrive", queue="bench")
async def arrive(number):
    tally.arrive(number)


@app.task(name="slow", queue="bench")
async def wait():
    await asyncio.to_thread(tally.slow)


async def setup():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work():
    async with app.open_async():
        await app.run_worker_async(concurrency=24, install_signal_handlers=False)


async def client():
    await app.open_async()


async def one(_):
    await noop.defer_async()


async def number(_, at):
    await arrive.defer_async(number=at)


async def many(_, count):
    await noop.batch_defer_async(*([{}] * count))


async def slow(_):
    await wait.defer_async()


if __name__ == "__main__":
    run(setup, work, client, one, number, many, slow)
