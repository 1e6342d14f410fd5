"""A database in which other programs have left in every column what nobody expects there."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

FORGED = "FORGED"
TEXT = f"<b>\r\n{FORGED} 1 job deleted\n\x1b]0;{FORGED}\x07\x1b[2J\x9b31m\u202e\u2028{FORGED}\x85{FORGED}\x08\x7f\u2066"
"""Commands for a terminal, ends of lines and turned directions, with a word that no line may begin with."""
INVALID = b"\xff\xfe\x80 no UTF-8"
AFTER_NUL = "greet\0<script>alert(1)</script>"
ADDRESS = "b\0/../../pools/x?"

TIMES = (1e308, -1e308, 9e999, -9e999, 1e18, -1e18, 1e11, 253402300800.0, -62135596801.0, 0.0, 5e-324)
NUMBERS = (2**63 - 1, -(2**63), 0, -1)
TYPES: tuple[str | bytes, ...] = (
    "greet",
    TEXT,
    INVALID,
    AFTER_NUL,
    ADDRESS,
    "App/Jobs:Send",
    "..",
    ".",
    "%2e%2e/x",
    "a b",
    "",
    "{x}",
)
JSON = ('{"a": 1}', "[" * 5000, "nonsense", "NaN", "1e999", '"\\ud800"', TEXT, "9" * 5000, "")


def fill(path: Path) -> int:
    """Odd rows in every table. Returns how many jobs there are."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("BEGIN")
        _jobs(connection)
        ids = [row[0] for row in connection.execute("SELECT id FROM jobs")]
        _beside(connection, ids)
        connection.execute("COMMIT")
    return len(ids)


def _jobs(connection: sqlite3.Connection) -> None:
    statuses = ("pending", "running", "done", "failed", "cancelled", "quarantined")
    for number, type_ in enumerate(TYPES):
        for state, status in enumerate(statuses):
            at = TIMES[(number + state) % len(TIMES)]
            count = NUMBERS[(number + state) % len(NUMBERS)]
            text: str | bytes | None = (TEXT, INVALID, None, AFTER_NUL)[(number + state) % 4]
            json = JSON[(number + state) % len(JSON)]
            values = {
                "payload": json, "status": status, "priority": count, "requires": text or "", "scheduled_at": at,
                "attempts": count, "max_attempts": count, "crashes": count, "locked_by": text, "locked_at": at,
                "lock_expires_at": at, "claim_token": count, "cancel_requested_at": at if state % 2 else None,
                "unique_key": None, "progress": at, "result": json, "last_error": text,
                "created_at": (at, TEXT, INVALID, None, b"\0\1", count)[(number + state) % 6],
                "updated_at": (None, at, b"\xff", TEXT)[(number + state) % 4], "started_at": at if state else None,
                "completed_at": TIMES[(number + state + 3) % len(TIMES)],
            }  # fmt: skip
            texts = {"payload", "requires", "locked_by", "result", "last_error"}
            marks = ["CAST(? AS TEXT)" if name in texts else "?" for name in values]
            connection.execute(
                f"INSERT INTO jobs (type, {', '.join(values)}) VALUES (CAST(? AS TEXT), {', '.join(marks)})",
                (type_, *values.values()),
            )


def _beside(connection: sqlite3.Connection, ids: list[int]) -> None:
    for number, job in enumerate(ids):
        at, count = TIMES[number % len(TIMES)], NUMBERS[number % len(NUMBERS)]
        for text in (TEXT, INVALID):
            connection.execute(
                "INSERT INTO job_errors (job_id, attempt, kind, message, traceback, exit_code, signal, stderr,"
                " peak_memory, worker, duration, created_at) VALUES (?, ?, CAST(? AS TEXT), CAST(? AS TEXT),"
                " CAST(? AS TEXT), ?, CAST(? AS TEXT), CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, ?)",
                (job, count, text, text, text, count, text, text, count, text, at, at),
            )
        connection.execute(
            "INSERT INTO job_runs VALUES (?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?, ?, CAST(? AS TEXT))",
            (job, count, count, TEXT, INVALID, at, at, at, count, TEXT),
        )
    for number, text in enumerate((TEXT, INVALID, ADDRESS)):
        at = TIMES[number]
        connection.execute(
            "INSERT INTO job_schedules VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?,"
            " CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT))",
            (text, text, at, at, 2**63 - 1, text, text, 2**62, at if number else None, at, -at, text, text),
        )
        connection.execute("INSERT INTO job_controls VALUES ('paused', CAST(? AS TEXT), 1, ?)", (text, at))
        connection.execute("INSERT INTO job_controls VALUES ('workers', CAST(? AS TEXT), ?, ?)", (text, 2**62, at))
        connection.execute(
            "INSERT INTO job_history VALUES ((unixepoch() / 60 - 5) * 60.0, CAST(? AS TEXT), ?, ?, ?, ?, ?, ?)",
            (text, 2**62, 2**62, -5, 2**62, 9e999, -9e999),
        )
        connection.execute(
            "INSERT INTO job_supervisors (id, pid, host, machine_id, boot_id, owner_lock, scoreboard, config, version,"
            " started_at) VALUES (?, ?, CAST(? AS TEXT), CAST(? AS TEXT), 'b', '/nowhere/lock', '/nowhere/board',"
            " CAST(? AS TEXT), CAST(? AS TEXT), ?)",
            (f"odd-{number}", 2**62, text, text, text, text, at),
        )
