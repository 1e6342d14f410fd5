"""What is no time, such as NaN or infinity, in columns that anybody may write: no duty stops, every list is shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import released
from supervisor.store.base import Engine
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.maintenance import PostgresRegistry
from tests.site_under_test import Site, wait_for
from tests.store.kit import NOW, Desk, supervisor_record, worker_record

NO_TIMES = ["NaN", "Infinity", "-Infinity", "-1e300", "1e300"]

# Constrained, or part of a key.
KEPT = {
    *(("jobs", "scheduled_at"), ("job_history", "minute")),
    *(("job_limits", "interval"), ("job_limits", "key_interval")),
}


def spoil(foreign: psycopg.Connection, value: str) -> None:
    """Every column of ours that is a number with a fraction."""
    columns = foreign.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND data_type = 'double precision' AND table_name LIKE 'job%'"
    ).fetchall()
    assert len(columns) > 15
    for table, column in columns:
        if (table, column) not in KEPT:
            foreign.execute(f"UPDATE {table} SET {column} = '{value}'".encode())
    foreign.execute("DELETE FROM job_history")
    foreign.execute(
        "INSERT INTO job_history (minute, type, done, failed, waiting, running, run_seconds, wait_seconds)"
        f" VALUES ('{value}', 'tag', 1, 1, 1, 1, '{value}', '{value}')".encode()
    )


@pytest.mark.parametrize("value", NO_TIMES)
def test_a_lease_that_is_no_time_keeps_nobody_alive(
    desk: Desk, engine: Engine, foreign: psycopg.Connection, value: str
) -> None:
    elsewhere = supervisor_record("s9", engine, "/nowhere", machine_id="other", boot_id="other")
    registry = desk.maintenance.registry
    registry.register(elsewhere)
    foreign.execute(f"UPDATE job_supervisors SET lease_until = '{value}', started_at = '{value}'".encode())
    with closing(Connection(Address(engine.url))) as connection:
        assert PostgresRegistry(connection).owner_lives(elsewhere) is False
    assert registry.leases()["s9"].left < 0
    assert [record.started_at for record in registry.supervisors()] == [0]
    desk.claims.register(worker_record("w1", "s9"))
    job = desk.put()
    [held] = desk.claim()
    assert desk.maintenance.locks.settle_dead("w1", [released(held)], NOW, supervisor="s9") == 1
    assert desk.status(job) is Status.PENDING
    registry.forget("s9", time.time())
    assert registry.supervisors() == []


@pytest.mark.postgres
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_supervisor_works_and_tells_its_state_whatever_is_in_the_tables(
    make_site: Callable[..., Site], value: str
) -> None:
    site = make_site(
        '[pools.work]\nhandler = "jobs:work"\n[[schedules]]\nname = "often"\ntype = "work"\nevery = "1s"\n'
        '[types.work]\nmax_running = 9\nrate = "100/s"\nrate_per_key = "100/s"\n'
        'breaker = { failures = 2, pause = "1s" }\n'
    )
    site.start()
    first = site.queue.enqueue("work", concurrency_key="a")
    site.done(first)
    wait_for(lambda: site.rows("SELECT 1 FROM job_schedules WHERE last_at IS NOT NULL"), "the schedule")
    supervisor = site.supervisors[-1]
    with psycopg.connect(site.url, autocommit=True) as foreign:
        spoil(foreign, value)
        site.stop(supervisor)
        spoil(foreign, value)
        site.start()
        spoil(foreign, value)
        before = foreign.execute("SELECT max(id) FROM jobs").fetchone()
        assert before is not None
        site.done(site.queue.enqueue("work", concurrency_key="a"))
        assert foreign.execute("SELECT 1 FROM job_limits, job_keys").fetchone()
        wait_for(lambda: foreign.execute("SELECT max(id) FROM jobs").fetchone() > before, "the schedule to fire")
        spoil(foreign, value)
        for words in (["status"], ["jobs", "list"], ["jobs", "show", "1"], ["schedules", "list"], ["logs"]):
            shown = site.command(*words, "--json", code=None)
            assert shown.returncode == 0, (words, shown.stdout, shown.stderr)
            if words != ["logs"]:
                json.loads(shown.stdout, parse_constant=pytest.fail)
            assert site.command(*words, code=None).returncode == 0
        assert "Traceback" not in site.command("doctor", code=None).stderr
        assert not [one for one in site.events() if one.get("event") in ("duty_failed", "duty_slow")]
        assert not site.event("worker_died")
