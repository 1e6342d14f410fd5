"""The statements of this engine."""

from __future__ import annotations

from supervisor.store.queries import Queries, load

QUERIES: Queries = load("supervisor.store.sqlite")
