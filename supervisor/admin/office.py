"""What every route may use: the settings, the desk, and what is shared between requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from supervisor.admin.desk import Desk
from supervisor.admin.keys import Keys
from supervisor.admin.snapshots import Snapshots
from supervisor.admin.watch import Watch
from supervisor.config.settings import AdminSettings


@dataclass(frozen=True, slots=True)
class Office:
    """One admin process at work. `pools` are the names of the configured ones."""

    settings: AdminSettings
    keys: Keys
    desk: Desk
    watch: Watch
    pools: tuple[str, ...]
    snapshots: Snapshots = field(default_factory=Snapshots)


def office_of(request: Request) -> Office:
    office: Office = request.app.state.office
    return office


TheOffice = Annotated[Office, Depends(office_of)]
"""The parameter of a route that wants it."""


def may_change(request: Request) -> bool:
    """Whether the request came with the full token; the gate has put its role into the scope."""
    return bool(request.scope.get("state", {}).get("role", "admin") == "admin")
