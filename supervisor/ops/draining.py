"""Draining a host: its supervisors claim nothing more and finish what runs, until it is undrained."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.domain.errors import ConfigError
from supervisor.ops.posted import Seen, living, seen
from supervisor.store.base import Operations

_LOOK_EVERY = 0.5  # seconds


class UnknownHost(ConfigError):
    """No supervisor of that host is registered."""


def drain(operations: Operations, host: str, now: float, *, force: bool = False) -> bool:
    """Returns whether that is a change. Raises UnknownHost if no supervisor runs there, unless `force`d."""
    known = {record.host for record in living(operations)}
    if host not in known and not force:
        there = f"supervisors run on {', '.join(sorted(known))}" if known else "no supervisor is running"
        raise UnknownHost([f"no supervisor runs on the host {host!r}; {there}"])
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
