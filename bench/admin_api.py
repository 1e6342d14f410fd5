"""What the HTTP API costs with a million rows: `python -m bench.admin_api`.

Not part of `make bench`: it has no peer. Each question is asked through the whole application, in this process, so the
times are the server's own, without the network. They are milliseconds: the first, the median and the worst of 30.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from supervisor.admin.app import make_app
from supervisor.admin.keys import Keys
from supervisor.admin.requests import Requests
from supervisor.admin.state import AppState
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import JobStreams, OverviewWatch
from supervisor.client.queue import Queue
from supervisor.config.settings import AdminSettings
from supervisor.engine import open_engine

ROWS = 1_000_000
TIMES = 30
LISTENING = 20.0  # seconds
SETTINGS = AdminSettings("unix:/nowhere", None, None, (), False, False)

# The state of row n.
TABLES = {
    "10 have failed": "CASE WHEN n % 100000 = 7 THEN 'failed' ELSE 'done' END",
    "most have failed": "CASE WHEN n % 10 = 0 THEN 'done' ELSE 'failed' END",
    "half have failed, long ago": "CASE WHEN n <= 500000 THEN 'failed' ELSE 'done' END",
    "all wait": "'pending'",
}
QUESTIONS = (
    "/api/admin/jobs?status=failed",
    "/api/admin/jobs?status=failed&type=type3",
    "/api/admin/jobs?status=failed&status=quarantined&before=600000&limit=500",
    "/api/admin/jobs",
    "/api/admin/jobs?error=no+such+word",
    "/api/admin/overview",
    "/api/admin/failures",
)


def fill(path: Path, state: str, rows: int) -> None:
    open_engine(f"sqlite:///{path}").database.migrate()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            f"""
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT :rows)
            INSERT INTO jobs (type, status, payload, result, last_error, scheduled_at, created_at, updated_at,
                              started_at, completed_at)
            SELECT 'type' || (n % 8), {state}, '{{"path": "/srv/uploads/2026/11/picture-' || n || '.jpg"}}',
                   '{{"tags": ["cat", "table"], "score": 0.97}}',
                   CASE WHEN {state} = 'failed' THEN 'ValueError: no such picture: ' || n END,
                   :from + n / 100.0, :from + n / 100.0, :from + n / 100.0, :from + n / 100.0, :from + n / 100.0
            FROM numbers
            """,
            {"rows": rows, "from": time.time() - rows / 100},
        )
        connection.execute(
            "INSERT INTO job_errors (job_id, attempt, kind, message, created_at) "
            "SELECT id, 1, 'exception', last_error, completed_at FROM jobs WHERE status = 'failed'"
        )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def ask(app: Any, target: str) -> AsyncGenerator[bytes, None]:
    """What the application answers, part by part; whoever stops listening has gone away."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    task = asyncio.create_task(app(scope, receive, came.put))
    try:
        start = await came.get()
        if start["status"] != 200:
            raise RuntimeError(f"{target}: {start['status']} {(await came.get())['body']}")
        more = True
        while more:
            message = await came.get()
            more = message.get("more_body", False)
            yield message["body"]
    finally:
        gone.set()
        await task


async def milliseconds(app: Any, target: str) -> float:
    began = time.perf_counter()
    async for _ in ask(app, target):
        pass
    return (time.perf_counter() - began) * 1000


async def listening(app: Any, database: Path) -> tuple[float, int]:
    """Percent of a core while one listens and a job comes every second; how many events came."""

    async def work() -> None:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            while True:
                connection.execute("INSERT INTO jobs (type) VALUES ('new')")
                await asyncio.sleep(1)

    stream = ask(app, "/api/admin/events")
    await anext(stream)
    busy = asyncio.create_task(work())
    began, used, events = time.monotonic(), time.process_time(), 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LISTENING):
            async for _ in stream:
                events += 1
    share = (time.process_time() - used) / (time.monotonic() - began)
    busy.cancel()
    await stream.aclose()
    return 100 * share, events


async def measure(path: Path) -> None:
    url = f"sqlite:///{path}"
    executor, queue = StoreExecutor(open_engine(url)), Queue(url)
    requests, streams = Requests(queue, executor), JobStreams(queue)
    keys = Keys(None, None, "session")
    app = make_app(AppState(SETTINGS, keys, executor, requests, streams, OverviewWatch(executor), ()))
    await milliseconds(app, "/healthz")  # the first request of all makes what every one needs
    for question in QUESTIONS:
        times = []
        for _ in range(TIMES):
            times.append(await milliseconds(app, question))
        print(f"  {times[0]:8.1f} {statistics.median(times):8.1f} {max(times):8.1f}  {question}")
    share, events = await listening(app, path)
    print(f"  {share:.1f} % of a core with one listener, {events} events in {LISTENING:g} s")
    executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        for name, state in TABLES.items():
            path = Path(folder, name.replace(" ", "-") + ".db")
            fill(path, state, rows)
            print(f"{rows} rows, {name}: first, median, worst (ms)")
            asyncio.run(measure(path))
            path.unlink()


if __name__ == "__main__":
    main()
