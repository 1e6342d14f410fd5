"""From a database URL to its engine: with `app`, the only place that knows which engines exist."""

from __future__ import annotations

import importlib.util

from supervisor.domain.errors import StoreError
from supervisor.store.base import Engine


def open_engine(url: str) -> Engine:
    """Choose the engine for a URL; nothing is connected yet. Raises StoreError for an unknown scheme."""
    if not isinstance(url, str):
        raise TypeError(f"a database's URL must be a string, not {url!r}")
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from supervisor.store.sqlite import SqliteEngine

        return SqliteEngine(url)
    if scheme in ("postgres", "postgresql"):
        if importlib.util.find_spec("psycopg") is None:
            raise StoreError("PostgreSQL needs the driver psycopg: pip install 'job-supervisor[postgres]'")
        from supervisor.store.postgres import PostgresEngine

        return PostgresEngine(url)
    raise StoreError(
        f"{url!r} is not a database URL; write sqlite:///relative.db, sqlite:////absolute.db or "
        "postgresql://user@host/database"
    )
