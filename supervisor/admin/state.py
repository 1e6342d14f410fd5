"""The state shared by all routes: settings, executor, watch and snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from supervisor.admin.job_streams import JobStreams
from supervisor.admin.keys import Keys
from supervisor.admin.requests import Requests
from supervisor.admin.snapshots import Snapshots
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.uploads import Uploads
from supervisor.admin.watch import Watch
from supervisor.config.settings import AdminSettings


@dataclass(frozen=True, slots=True)
class AppState:
    """The state of one admin process. `pools` are the names of the configured pools, `supervisor` is its owner's id.
    Without `uploads`, files are refused.
    """

    settings: AdminSettings
    keys: Keys
    executor: StoreExecutor
    watch: Watch
    pools: tuple[str, ...]
    supervisor: str = ""
    requests: Requests = field(kw_only=True)
    streams: JobStreams = field(kw_only=True)
    snapshots: Snapshots = field(default_factory=Snapshots)
    uploads: Uploads | None = None


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
