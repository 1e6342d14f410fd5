"""Databases with rows of every kind in every table, and what is in them."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from supervisor.engine import open_engine
from supervisor.store.moving import KEYS
from tests.postgres_server import Databases

Row = tuple[Any, ...]
Tables = dict[str, list[Row]]

TEXTS = ("", "plain", "héllo — 你好 🎉", "tab\tand\nline\\and\\N", "'quoted' \"twice\"", "\u2028\x7f\x01", "x" * 5000)
STATUSES = ("pending", "running", "done", "failed", "cancelled", "quarantined")
T0 = 1_700_000_000.0
OF_AN_ENGINE = {("job_supervisors", column) for column in ("lease_until", "node", "posted")} | {("job_runs", "number")}
NOT_MOVED = "'schema', 'oldest_writer', 'epoch', 'closed_for', 'moved_to', 'moved_from'"


def rows(count: int, seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """(table, values) of so many jobs, with gaps between their ids, and of what belongs to them."""
    chance = random.Random(seed)
    number = 0

    def text() -> str:
        return chance.choice(TEXTS)

    def moment() -> float:
        return T0 + chance.random() * 1e6

    for job in range(1, count + 1):
        number += chance.choice((1, 1, 1, 2, 50))
        status = chance.choice(STATUSES)
        running = status == "running"
        finished = status not in ("pending", "running")
        yield (
            "jobs",
            {
                "id": number,
                "type": chance.choice(("tag", "mail:Send", "a/b.c-d")),
                "payload": json.dumps({"n": job, "text": text()}, ensure_ascii=bool(job % 2)),
                "status": status,
                "priority": chance.randint(-100, 100),
                "requires": chance.choice(("", "gpu", "cpu tag@2")),
                "scheduled_at": moment(),
                "attempts": chance.choice((0, 1, 2**53 - 1)),
                "max_attempts": chance.choice((None, 1, 2**62)),
                "crashes": chance.randint(0, 3),
                "locked_by": chance.choice(("foreign", "w1")) if running else None,
                "locked_at": moment() if running else None,
                "lock_expires_at": moment() if running else None,
                "claim_token": chance.randint(0, 9),
                "cancel_requested_at": chance.choice((None, moment())),
                "unique_key": chance.choice((None, f"key {job} 🎉", f"k{job % 7}" if finished else None)),
                "progress": chance.choice((None, 0.0, 0.1, 1.0)),
                "result": chance.choice((None, "null", json.dumps(text()))) if finished else None,
                "last_error": chance.choice((None, text())),
                "created_at": moment(),
                "updated_at": chance.choice((None, moment())),
                "started_at": chance.choice((None, moment())),
                "completed_at": moment() if finished else None,
                "meta": chance.choice((None, '{"tags": ["a"], "nul": "\\u0000"}')),
                "progress_text": chance.choice((None, text())),
            },
        )
        if job % 3 == 0:
            yield "job_errors", {
                "id": 2 * job, "job_id": number, "attempt": 1, "kind": "exception", "message": text(),
                "traceback": None, "exit_code": chance.choice((None, -9)), "signal": None, "stderr": text(),
                "peak_memory": 2**40, "worker": "tag-1", "duration": chance.random(), "created_at": moment(),
            }  # fmt: skip
        if job % 4 == 0:
            for token in (2, 1):
                yield "job_runs", {
                    "job_id": number, "token": token, "attempt": 1, "outcome": "done", "worker": None,
                    "started_at": moment(), "duration": chance.random(), "cpu_time": 0.1 + 0.2, "peak_memory": None,
                    "log": text(),
                }  # fmt: skip
        if job % 10 == 0:
            yield "job_batch_limits", {"job_id": number, "most": job}
            yield "job_second_chances", {"job_id": number, "used": 1}
    for name in ("tag", "mail:Send", "ünder"):
        yield "job_controls", {"kind": chance.choice(("paused", "workers")), "name": name, "value": 3, "updated_at": T0}
        yield "job_schedules", {
            "name": name, "timing": "{}", "next_at": moment(), "last_at": None, "last_job": 1, "type": "tag",
            "payload": '{"a": 1}', "paused_at": chance.choice((None, T0)), "priority": 5, "expect_within": 60.0,
            "expected_from": moment(), "watched": " 7", "definition": chance.choice((None, '{"type": "tag"}')),
        }  # fmt: skip
        yield "job_meta", {"key": f"alert:{name}", "value": text()}
        for minute in range(count // 10):
            yield "job_history", {
                "minute": T0 + 60 * minute, "type": name, "done": 3, "failed": 0, "waiting": 1, "running": 2,
                "run_seconds": chance.random(), "wait_seconds": 1.5,
            }  # fmt: skip
    yield "job_supervisors", {
        "id": "gone", "pid": 2**22, "host": "nowhere", "machine_id": "another", "boot_id": "gone",
        "owner_lock": "/gone", "scoreboard": "/gone", "config": "", "version": "0", "started_at": T0, "counted": "{}",
    }  # fmt: skip
    yield "job_workers", {
        "incarnation": "w1", "supervisor": "gone", "pool": "tag", "name": "tag-1", "pid": 2**22, "slot": 0,
        "policy": "{}", "started_at": T0, "pid_started": None,
    }  # fmt: skip


def empty_server(postgres: Databases, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database, whose password is in the environment as well."""
    server = postgres.fresh_database()
    password = re.search(r":([^:@/]*)@", server)
    monkeypatch.setenv("PGPASSWORD", password[1] if password else "")
    return server


def fill(url: str, count: int, seed: int = 1) -> None:
    """Make the tables, and write all of `rows`."""
    open_engine(url).database.migrate()
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
            for table, values in rows(count, seed):
                names = ", ".join(values)
                raw.execute(
                    f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", [*values.values()]
                )
            raw.execute("UPDATE job_meta SET value = '1800' WHERE key = 'foreign_lock_time'")
            raw.execute("UPDATE sqlite_sequence SET seq = seq + 1000 WHERE name = 'jobs'")
        return
    with psycopg.connect(url) as connection, connection.pipeline():
        for table, values in rows(count, seed):
            added = {"lease_until": T0} if table == "job_supervisors" else {}
            names, marks = ", ".join(values | added), ", ".join(["%s"] * len(values | added))
            connection.execute(
                f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({marks})",
                [*values.values(), *added.values()],
            )
        connection.execute("UPDATE job_meta SET value = '1800' WHERE key = 'foreign_lock_time'")
        connection.execute("SELECT setval('jobs_id_seq', (SELECT max(id) + 1000 FROM jobs))")


def contents(url: str) -> Tables:
    """All rows but those of the engine itself, and the latest runs last."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
            found = {table: _rows(raw, table, _columns(raw, table)) for table in KEYS}
            found["order of runs"] = raw.execute("SELECT job_id, token FROM job_runs ORDER BY rowid").fetchall()
            return found
    with psycopg.connect(url, autocommit=True) as connection:
        found = {}
        for table in KEYS:
            cursor = connection.execute(f"SELECT * FROM {table} LIMIT 0")
            found[table] = _rows(connection, table, [column.name for column in cursor.description or ()])
        found["order of runs"] = connection.execute("SELECT job_id, token FROM job_runs ORDER BY number").fetchall()
        return found


def _columns(raw: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]


def _rows(raw: Any, table: str, columns: list[str]) -> list[Row]:
    shared = sorted(column for column in columns if (table, column) not in OF_AN_ENGINE)
    where = f"WHERE key NOT IN ({NOT_MOVED})" if table == "job_meta" else ""
    found = raw.execute(f"SELECT {', '.join(shared)} FROM {table} {where}").fetchall()
    return sorted(found, key=lambda row: repr(row))
