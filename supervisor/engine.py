"""From a database URL to its engine: with `app`, the only place that knows which engines exist."""

from __future__ import annotations

import importlib.util

from supervisor.domain.errors import StoreError
from supervisor.domain.text import unknown_url, without_driver
from supervisor.store.base import Engine


def open_engine(url: str, listening: str | None = None) -> Engine:
    """Choose the engine for a URL; nothing is connected yet. Raises StoreError for an unknown scheme.

    `listening` is a second URL of the same PostgreSQL database: see `listen_database` in docs/configuration.md.
    """
    if not isinstance(url, str):
        raise TypeError(f"a database's URL must be a string, not {url!r}")
    url, listening = without_driver(url), listening and without_driver(listening)
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from supervisor.store.sqlite import SqliteEngine

        return SqliteEngine(url)
    if scheme in ("postgres", "postgresql"):
        if missing := missing_driver(url):
            raise StoreError(missing)
        from supervisor.store.postgres import PostgresEngine

        return PostgresEngine(url, listening)
    raise StoreError(unknown_url(url))


def missing_driver(url: str) -> str:
    """What is to be installed before a database can be opened; empty if nothing is."""
    if url.startswith("postgres") and importlib.util.find_spec("psycopg") is None:
        return "PostgreSQL needs the driver psycopg: pip install './job-supervisor[postgres]'"
    return ""
