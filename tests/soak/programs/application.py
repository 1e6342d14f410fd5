"""The connection of an application that knows nothing of us, to the file or the server that argument 1 names."""

import sqlite3
import sys
from typing import Any

import psycopg

WHERE = sys.argv[1]
SERVER = WHERE.startswith("postgres")
Error: Any = psycopg.Error if SERVER else sqlite3.OperationalError


def connect() -> Any:
    """Without a transaction of its own. It raises Error when sessions end, or when others hold the lock for long."""
    if SERVER:
        return psycopg.connect(WHERE, autocommit=True, connect_timeout=5)
    connection = sqlite3.connect(WHERE, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection
