"""Many hosts on one PostgreSQL server, all on this machine: what each costs the server, idle and with a steady load.

`python -m bench.many_hosts [HOSTS …]` prints a table, a column for each number of hosts. A look is that of a
maintainer that wakes up, a claim that of a worker. Counts depend less than times and CPU on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench import processes, waiting
from bench.ours import HANDLERS, ROOT, pool
from bench.peers.base import PROBE
from bench.probe import tally
from supervisor.engine import open_engine
from tests import another_host
from tests.postgres_server import Server, server

HOSTS, RATES = (1, 10, 20, 30), (50, 500)  # jobs a second
IDLE, LOADED, SETTLING = 30.0, 10.0, 15.0  # seconds
BACKLOG = 10_000  # jobs
SETTINGS = {"max_connections": 300, "shared_preload_libraries": "pg_stat_statements"}
_PATIENCE = 90.0  # seconds
_CALLS = "(SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '{like}')"
_COUNTS = {
    "at": "extract(epoch FROM clock_timestamp())",
    "bytes of log": "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')",
    "transactions": "(SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database())",
    "writes": "pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
    "leases": "(SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'job_supervisors')",
    "looks": _CALLS.format(like="%xmin::text::bigint FROM job_supervisors%"),
    "claims": _CALLS.format(like="%FROM supervisor_settle_and_claim%"),
}
_NOTIFYING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'"
_TIMES = (
    "SELECT percentile_cont(array[0.5, 0.99]) WITHIN GROUP (ORDER BY started_at - created_at) FROM jobs WHERE id > "
)
_LEFT = "SELECT count(*) FROM jobs WHERE status IN ('pending', 'running')"
_FILL = f"WITH new AS (INSERT INTO jobs (type) SELECT 'noop' FROM generate_series(1, {BACKLOG}) RETURNING 1) TABLE new"


class Meter:
    """What has happened on the server since the last look."""

    def __init__(self, running: Server, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE EXTENSION pg_stat_statements")
        self._postmaster = psutil.Process(int((running.folder / "data" / "postmaster.pid").read_text().split()[0]))
        self._before: dict[str, float] = {}

    def one(self, query: str) -> Any:
        return (self._connection.execute(query).fetchone() or [None])[0]

    def take(self) -> dict[str, float]:
        """Per second; the seconds themselves under `at`."""
        now = {name: float(self.one(f"SELECT {count}")) for name, count in _COUNTS.items()} | {"CPU": self._cpu()}
        before, self._before = self._before or now, now
        seconds = now["at"] - before["at"] or 1
        return {name: (now[name] - before[name]) / seconds for name in now} | {"at": seconds}

    def _cpu(self) -> float:  # seconds, also of processes that have ended
        spent = sum(self._postmaster.cpu_times()[2:4])
        for process in (self._postmaster, *self._postmaster.children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += sum(process.cpu_times()[:2])
        return float(spent)


@contextlib.contextmanager
def supervisors(folder: Path, url: str, hosts: int) -> Iterator[None]:
    """One of one worker on each host, in folders and a boot of its own."""
    (folder / "jobs.py").write_text(HANDLERS)
    config = folder / "supervisor.toml"
    config.write_text(f'database = "{url}"\n{pool("noop", 1)}\n[log]\nlevel = "error"\n')
    env = os.environ | {tally.FOLDER: str(folder), "PYTHONPATH": f"{PROBE}:{ROOT}"}
    with contextlib.ExitStack() as stack:
        for number in range(hosts):
            (own := folder / f"host-{number}").mkdir()
            names = {"STATE_DIRECTORY": str(own), "RUNTIME_DIRECTORY": str(own), "SUPERVISOR_HOST": own.name}
            command = [sys.executable, "-P", another_host.__file__, f"boot-{number}", "run", "-c", str(config)]
            stack.enter_context(processes.running(command, env=env | names, log=folder / "log"))
        yield


def insert(url: str, rate: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.monotonic()
        for number in takewhile(lambda _: time.monotonic() < began + LOADED, count()):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            connection.execute("INSERT INTO jobs (type) VALUES ('noop')")


def loaded(meter: Meter, url: str, rate: int) -> dict[str, float]:
    first = meter.one("SELECT coalesce(max(id), 0) FROM jobs")
    inserting = threading.Thread(target=insert, args=(url, rate))
    meter.take()
    inserting.start()
    waits = []
    while inserting.is_alive():
        waits.append(meter.one(_NOTIFYING))
        time.sleep(0.02)
    waiting.until(lambda: meter.one(_LEFT) == 0, "the end of all jobs", _PATIENCE, 0.05)
    counts = meter.take()
    jobs = meter.one(f"SELECT count(*) FROM jobs WHERE id > {first}") / counts["at"]
    half, most = meter.one(f"{_TIMES}{first}")
    found = {f"{name} per job": counts[name] / jobs for name in ("looks", "claims", "CPU")}
    return found | {"jobs/s": jobs, "median": half, "99 %": most, "waiting for NOTIFY's lock": sum(waits) / len(waits)}


def measure(running: Server, hosts: int) -> dict[str, float]:
    url = running.fresh_database()
    open_engine(url).database.migrate()
    meter = Meter(running, url)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, supervisors(Path(name), url, hosts):
        waiting.until(lambda: meter.one("SELECT count(*) FROM job_workers") >= hosts, "workers", _PATIENCE, 0.5)
        time.sleep(SETTLING)
        meter.take()
        time.sleep(IDLE)
        found = {f"idle: {name}": value for name, value in meter.take().items()}
        found["connections"] = meter.one("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()")
        for rate in RATES:
            found |= {f"{rate} jobs/s: {name}": value for name, value in loaded(meter, url, rate).items()}
        began = time.monotonic()
        meter.one(_FILL)
        waiting.until(lambda: meter.one(_LEFT) == 0, "an empty queue", _PATIENCE, 0.05)
        found["backlog, jobs/s"] = BACKLOG / (time.monotonic() - began)
    return found


if __name__ == "__main__":
    hosts = [int(word) for word in sys.argv[1:]] or HOSTS
    processes.interrupt_on_stops()
    with server(SETTINGS) as running:
        columns = [measure(running, number) for number in hosts]
    print("| hosts |", " | ".join(map(str, hosts)), "|")
    for name in columns[0]:
        print(f"| {name} |", " | ".join(f"{column[name]:,.3g}" for column in columns), "|")
