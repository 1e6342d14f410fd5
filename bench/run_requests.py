"""What a request over the queue adds to its handler: `python -m bench.run_requests`, on this machine, with SQLite.

Each handler sleeps and returns how long that took and when it began; the rest of the time that a client has waited is
what the queue adds, before the handler and after it. "idle" asks one after the other, "half load" at random times, so
that the workers are busy half of the time; there, waiting for a worker is part of what is added before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.waiting import percentile, until
from supervisor import AsyncQueue

WORKERS = 2
CONFIG = f"""
database = "sqlite:///./app.db"
[pools.work]
handler = "jobs:work"
workers = {WORKERS}
[admin]
listen = "unix:admin.sock"
"""
JOBS = """
import time

def work(payload, ctx):
    began, start = time.time(), time.perf_counter()
    time.sleep(payload["seconds"])
    return {"began": began, "seconds": time.perf_counter() - start}
"""
Ask = Callable[[float], Awaitable[dict[str, float]]]


class Added(NamedTuple):
    """Seconds: before the handler, and after it."""

    before: float
    after: float


class Http:
    """Connections to the admin process that stay open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, seconds: float) -> dict[str, float]:
        link = self._idle.pop() if self._idle else await asyncio.open_unix_connection(str(self._path))
        body = json.dumps({"seconds": seconds})
        link[1].write(
            b"POST /run/work HTTP/1.1\r\nHost: localhost\r\nX-Requested-With: supervisor\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body.encode())
        )
        head = await link[0].readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        answer: dict[str, Any] = json.loads(await link[0].readexactly(length))
        self._idle.append(link)
        result: dict[str, float] = answer["result"]
        return result

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


async def asked(ask: Ask, seconds: float) -> Added:
    began, start = time.time(), time.perf_counter()
    found = await ask(seconds)
    whole = time.perf_counter() - start
    before = found["began"] - began
    return Added(before, whole - before - found["seconds"])


async def idle(ask: Ask, seconds: float, times: int) -> list[Added]:
    found = []
    for _ in range(times):
        await asyncio.sleep(0.02)
        found.append(await asked(ask, seconds))
    return found


async def half_load(ask: Ask, seconds: float, times: int) -> list[Added]:
    chance = random.Random(1)
    asking = []
    for _ in range(times):
        await asyncio.sleep(chance.expovariate(0.5 * WORKERS / seconds))
        asking.append(asyncio.create_task(asked(ask, seconds)))
    return await asyncio.gather(*asking)


def row(name: str, found: list[Added]) -> str:
    added = [one.before + one.after for one in found]
    before, after = ([getattr(one, part) for one in found] for part in Added._fields)
    figures = (
        statistics.median(added),
        percentile(added, 0.99),
        statistics.median(before),
        statistics.median(after),
    )
    return f"{name:40}" + "".join(f"{1000 * figure:9.2f}" for figure in figures)


async def measure(folder: Path, times: int) -> None:
    http = Http(folder / "admin.sock")
    async with AsyncQueue(f"sqlite:///{folder}/app.db") as queue:

        async def run(seconds: float) -> dict[str, float]:
            result: dict[str, float] = await queue.run("work", {"seconds": seconds}, timeout=60)
            return result

        print(f"{'ms added to a handler':40}{'median':>9}{'p99':>9}{'before':>9}{'after':>9}")
        for name, ask in (("AsyncQueue.run", run), ("POST /run", http.ask)):
            for seconds in (0.0, 0.005, 0.02, 0.1):
                await idle(ask, seconds, 5)
                found = await idle(ask, seconds, times)
                print(row(f"{name}, idle, {1000 * seconds:g} ms", found), flush=True)
            for seconds in (0.02, 0.1):
                found = await half_load(ask, seconds, times)
                print(row(f"{name}, half load, {1000 * seconds:g} ms", found), flush=True)
    http.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=300)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "supervisor.toml").write_text(CONFIG)
        (folder / "jobs.py").write_text(JOBS)
        with (folder / "log").open("wb") as log:
            run = subprocess.Popen([sys.executable, "-m", "supervisor", "run"], cwd=folder, stdout=log, stderr=log)
        try:
            until((folder / "admin.sock").exists, "the admin process", 30)
            asyncio.run(measure(folder, times))
        finally:
            run.terminate()
            run.wait(30)


if __name__ == "__main__":
    main()
