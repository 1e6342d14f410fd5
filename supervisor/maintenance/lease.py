"""The lease without which a supervisor may not claim, and what it publishes with it for other hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreError
from supervisor.domain.text import compact_json
from supervisor.maintenance.waking import present_workers
from supervisor.store.base import Registry, SupervisorRecord
from supervisor.system.scoreboard import ClaimGate, Scoreboard, boot_time
from supervisor.system.slot import Snapshot
from supervisor.telemetry import events

_MOST_PUBLISHED = 512 * 1024  # characters; more workers than fit are left out
# What is published of a worker, as in its Snapshot.
_PUBLISHED = (
    *("incarnation", "name", "pid", "state_number", "claims", "done", "settled", "fraction", "text", "concurrency"),
    *("running", "job", "token", "started", "batch"),
)
_EMPTY = Snapshot()


class PublishedBoard(NamedTuple):
    """`status` is the supervisor's; `workers` by their slots, with times of our own monotonic clock; its host's
    `clock` is so many seconds ahead of the server's. `drained`: its workers claim nothing any more.
    """

    status: dict[str, Any]
    workers: Mapping[int, Snapshot]
    clock: int = 0
    drained: bool = False


def publish(board: Scoreboard) -> str:
    """As JSON. It is the same text until something changes: nothing in it tells a worker's age or its heartbeat."""
    ahead = board.gate.now() - monotonic()
    workers = {number: _published(slot, ahead) for number, slot in present_workers(board)}
    found = {
        "status": board.supervisor_status(),
        "clock": round(time() - board.gate.now()),
        "drained": bool(board.gate.drained),
    }
    while len(text := compact_json(found | {"workers": workers})) > _MOST_PUBLISHED and workers:
        workers = dict(list(workers.items())[: len(workers) // 2])
    return text


def _published(slot: Snapshot, ahead: float) -> dict[str, Any]:
    """What differs from an empty slot; `started` in Unix seconds."""
    found = {name: getattr(slot, name) for name in _PUBLISHED if getattr(slot, name) != getattr(_EMPTY, name)}
    return found | ({"started": round(slot.started + ahead)} if slot.job else {})


def _read(fields: Mapping[str, Any], behind: float) -> Snapshot:
    """`behind` is how far our own monotonic clock is behind Unix time, in seconds."""
    known = {name: type(getattr(_EMPTY, name))(fields[name]) for name in _PUBLISHED if name in fields}
    found = Snapshot()
    for name, value in known.items():
        if isinstance(value, str):
            found.write(f"{name}_bytes", value)
        else:
            setattr(found, name, value)
    found.started -= behind
    return found


def read_published(text: str, now: float = 0.0) -> PublishedBoard:
    """Whatever the text is: another program, or another version of this one, may have written it. `now`: Unix time."""
    try:
        found = json.loads(text)
        status = dict(found["status"])
        if not all(isinstance(pool, dict) for pool in status.get("pools", {}).values()):
            raise TypeError("a pool is none")
        workers = {int(number): _read(fields, now - monotonic()) for number, fields in found["workers"].items()}
        return PublishedBoard(status, workers, int(found.get("clock", 0)), bool(found.get("drained")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return PublishedBoard({}, {})


def taken_elsewhere(registry: Registry) -> set[str]:
    """The types that pools of supervisors with a lease take, as they have published."""
    posted = [read_published(lease.posted) for lease in registry.leases().values() if lease.left > 0]
    pools = [pool for board in posted for pool in board.status.get("pools", {}).values()]
    return {str(type_) for pool in pools for type_ in pool.get("types", ())}


_MARGIN = 1.0  # seconds for a claim to reach the server, and for clocks that differ in speed
_EXACT = 0.5  # seconds: an answer that takes longer does not tell the time


class LeaseRenewal(Duty):
    """Renews it three times while it lasts, and publishes what other hosts should know, if that has changed.

    A lease of `seconds` is counted from before it was asked for, so it ends here before it ends for others. When it may
    have ended, others may have settled the jobs of some workers and removed their rows: the workers register again.
    """

    name = "lease"
    needs = Needs.NOTHING  # it is what tells whether the database is there
    quiet = True

    def __init__(
        self, registry: Registry, record: SupervisorRecord, gate: ClaimGate, seconds: float, publish: Callable[[], str]
    ) -> None:
        self.every = seconds / 3
        self._registry = registry
        self._record = record
        self._gate = gate
        self._seconds = seconds
        self._publish = publish
        self._published = ""
        self._renewed_at = 0.0
        self._log = events(process="maintainer")

    def run(self, now: float) -> Result:
        opened = self._gate.lapsed
        board = self._publish()
        began, at = self._renew(board)
        again = opened or at is None
        if at is None:
            self._registry.register(self._record)
            began, at = self._renew(board)
            if at is None:
                raise StoreError("the supervisor is not in the registry, and cannot be registered")
        self._published = board
        self._renewed_at = ended = boot_time()
        clock = at - (began + ended) / 2
        if ended - began > _EXACT and not opened:
            clock = self._gate.now() - ended
        if opened and self._gate.generation:
            self._log.warning("lease_regained", hint="its jobs may run on other hosts now: late results are refused")
        self._gate.renewed(began + self._seconds - _MARGIN, clock, again=again)
        return Result(news=opened)

    def _renew(self, board: str) -> tuple[float, float | None]:
        began = boot_time()
        return began, self._registry.renew(self._record.id, None if board == self._published else board)

    def overdue(self) -> bool:
        """Whether other duties have kept it waiting for long."""
        return boot_time() - self._renewed_at > self._seconds / 2
