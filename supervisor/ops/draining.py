"""Draining a host: its supervisors claim nothing more and finish what runs, until it is undrained."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.ops.hosts import require_host
from supervisor.ops.posted import Seen, seen
from supervisor.store.base import Operations

_LOOK_EVERY = 0.5  # seconds


def drain(operations: Operations, host: str, now: float, *, force: bool = False) -> bool:
    """Returns whether that is a change. Raises UnknownHost if no supervisor runs there, unless `force`d."""
    if not force:
        require_host(operations, host)
    return operations.controls.drain(host, now)


def undrain(operations: Operations, host: str) -> bool:
    """Returns whether that is a change."""
    return operations.controls.undrain(host)


def running_on(operations: Operations, host: str) -> int:
    """How many jobs the host's workers hold, as far as that is known here."""
    return sum(slot.claims for one in seen(operations) if one.record.host == host for slot in one.workers)


def await_drained(operations: Operations, host: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return when all supervisors of a drained host know that, and no job of theirs runs. Of another host, that is
    known up to 5 s later.
    """
    while any(one.record.host == host and _works(one) for one in seen(operations)):
        sleep(_LOOK_EVERY)


def _works(one: Seen) -> bool:
    return one.status is not None and (not one.drained or any(slot.claims for slot in one.workers))
