"""The server's statistics, which a session tells a second late, unless it is asked to, or ends."""

from __future__ import annotations

from typing import Any

import psycopg

FLUSH = "SELECT pg_stat_force_next_flush()"
_SESSIONS = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'"""


def sessions(session: psycopg.Connection[Any]) -> int:
    """How many there are on this database. One that is not counted any more has told all."""
    row = session.execute(_SESSIONS).fetchone()
    assert row is not None
    return int(row[0])
