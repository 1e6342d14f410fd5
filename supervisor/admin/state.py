"""The state shared by all routes, and the jobs shown before a bulk change, so that this applies to exactly them."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from supervisor.admin.keys import Keys
from supervisor.admin.requests import Requests
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import JobStreams, OverviewWatch
from supervisor.admin.uploads import Uploads
from supervisor.config.settings import AdminSettings
from supervisor.domain.limits import Limits

KEPT = 600.0  # seconds until an unconfirmed snapshot expires
MOST_IDS = 1_000_000  # of one snapshot
_MOST_TOGETHER = 2_000_000  # of all that are kept: 16 MB


class Snapshots:
    """Ids of jobs, for an intended change. Bounded in length and time; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, array[int], float]] = {}

    def keep(self, change: str, ids: array[int]) -> str:
        """Store these ids and return the name of the snapshot."""
        name = secrets.token_urlsafe(12)
        self._kept[name] = change, ids, time.monotonic()
        while sum(len(kept) for _, kept, _ in self._kept.values()) > _MOST_TOGETHER and len(self._kept) > 1:
            del self._kept[next(iter(self._kept))]
        return name

    def take(self, change: str, name: str) -> array[int] | None:
        """The ids, only once; None if the name is unknown, expired, or of another change."""
        oldest = time.monotonic() - KEPT
        self._kept = {name: kept for name, kept in self._kept.items() if kept[2] > oldest}
        found = self._kept.get(name)
        return self._kept.pop(name)[1] if found is not None and found[0] == change else None


@dataclass(frozen=True, slots=True)
class AppState:
    """The state of one admin process. `pools` are the names of the configured pools, `limits` the configured ones,
    `supervisor` is its owner's id. Without `uploads`, files are refused.
    """

    settings: AdminSettings
    keys: Keys
    executor: StoreExecutor
    requests: Requests
    streams: JobStreams
    watch: OverviewWatch
    pools: tuple[str, ...] = ()
    supervisor: str = ""
    uploads: Uploads | None = None
    limits: Mapping[str, Limits] = field(default_factory=dict)
    snapshots: Snapshots = field(default_factory=Snapshots)


def state_of(request: Request) -> AppState:
    state: AppState = request.app.state.state
    return state


async def _state_of(request: Request) -> AppState:
    """Asynchronous, or the framework would call it in a thread."""
    return state_of(request)


TheState = Annotated[AppState, Depends(_state_of)]
"""The parameter of a route that uses it."""


def may_change(request: Request) -> bool:
    """Whether the request came with the full token; the access middleware has put its role into the scope."""
    return bool(request.scope.get("state", {}).get("role", "admin") == "admin")
