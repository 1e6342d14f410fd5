"""The lease without which a supervisor may not claim, what it publishes with it, and what is set for its host."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.maintenance.waking import present_workers
from supervisor.store.base import Controls, Registry, SupervisorRecord
from supervisor.system.scoreboard import ClaimGate, Scoreboard, boot_time
from supervisor.system.slot import SLOT_BYTES, Slot, Snapshot, State
from supervisor.telemetry import events

_MOST_PUBLISHED = 512 * 1024  # characters; more workers than fit are left out


class PublishedBoard(NamedTuple):
    """`status` is the supervisor's; `workers` by their slots, with times of our own monotonic clock; its host's
    `clock` is so many seconds ahead of the server's. `drained`: its workers claim nothing any more.
    """

    status: dict[str, Any]
    workers: Mapping[int, Snapshot]
    clock: int = 0
    drained: bool = False

    def begun(self, slot: int, held: Collection[Claim]) -> tuple[tuple[int, int] | None, int]:
        """Which of these claims of a dead worker had begun, and how many ran together; None: that is not known, since
        it may have begun one after this was published.
        """
        worker = self.workers.get(slot)
        if worker is None:
            return None, 1
        if worker.places > 1:
            return None, len(held)
        run = worker.job, worker.token
        return (run, worker.together) if run in {(claim.job_id, claim.token) for claim in held} else (None, 1)


def publish(board: Scoreboard) -> str:
    """As JSON. It is the same text until something changes: nothing in it tells a worker's age or its heartbeat."""
    ahead = board.gate.now() - monotonic()
    workers: list[Any] = [_worker_fields(number, slot, ahead) for number, slot in present_workers(board)]
    text = _as_json(board, workers)
    while len(text) > _MOST_PUBLISHED and workers:
        del workers[len(workers) // 2 :]
        text = _as_json(board, workers)
    return text


def _as_json(board: Scoreboard, workers: list[Any]) -> str:
    told = {
        "status": board.supervisor_status(),
        "workers": workers,
        "clock": round(time() - board.gate.now()),
        "drained": board.gate.drained,
    }
    return json.dumps(told, separators=(",", ":"))


def _worker_fields(number: int, slot: Snapshot, ahead: float) -> list[Any]:
    run = [slot.job, slot.token, round(slot.started + ahead), slot.batch, slot.running] if slot.job else []
    rest = [slot.claims, slot.done, slot.progress, slot.text, slot.places, slot.unsettled]
    state = State.IDLE if slot.state is State.SPARE else slot.state  # which hosts with an older release do not know
    return [number, slot.incarnation, slot.name, slot.pid, int(state), rest, run]


def read_published(text: str, now: float = 0.0) -> PublishedBoard:
    """Whatever the text is: another program, or another version of this one, may have written it. `now`: Unix time."""
    try:
        found = json.loads(text)
        status = dict(found["status"])
        if not all(isinstance(pool, dict) for pool in status.get("pools", {}).values()):
            raise TypeError("a pool is none")
        workers = dict(_worker(told, monotonic() - now) for told in found["workers"])
        return PublishedBoard(status, workers, int(found.get("clock", 0)), bool(found.get("drained")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return PublishedBoard({}, {})


def taken_elsewhere(registry: Registry) -> set[str]:
    """The types that pools of supervisors with a lease take, as they have published."""
    posted = [read_published(lease.posted) for lease in registry.leases().values() if lease.left > 0]
    pools = [pool for board in posted for pool in board.status.get("pools", {}).values()]
    return {str(type_) for pool in pools for type_ in pool.get("types", ())}


def _worker(told: list[Any], behind: float) -> tuple[int, Snapshot]:
    number, incarnation, name, pid, state, rest, run = told
    claims, done, progress, text, places, unsettled = rest
    job, token, started, batch, running = run or (0, 0, 0, 1, 0)
    slot = Slot(memoryview(bytearray(SLOT_BYTES)))
    slot.assign(str(incarnation), str(name))
    slot.occupy(int(pid))
    slot.state(State(state))
    slot.work.run_together(int(places))
    slot.work.hold(int(claims))
    slot.work.end(int(done), (0, 0), int(running))
    slot.work.settle(int(done) - int(unsettled))
    slot.work.progress(-1.0 if progress is None else float(progress), str(text))
    slot.work.begin(int(job), int(token), float(started) + behind, 0.0, int(batch))
    return int(number), slot.read()


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


class HostWatch(Duty):
    """Passes on whether operators have drained this host, so that its workers claim nothing, and which types they have
    paused on it.
    """

    name = "host"
    every = 60.0  # seconds, when nothing changes
    rest = 0.2
    quiet = True

    def __init__(self, controls: Controls, host: str, gate: ClaimGate) -> None:
        self._controls = controls
        self._host = host
        self._gate = gate
        self._paused: frozenset[str] = frozenset()
        self._log = events(process="maintainer")

    def run(self, now: float) -> Result:
        controls = self._controls.current()
        drained, before = self._host in controls.drained, self._gate.drained
        if drained != before:
            self._gate.drain(drained)
            self._log.info("drained" if drained else "undrained", host=self._host)
        paused = controls.paused_on(self._host)
        resumed = bool(self._paused - paused)
        if paused != self._paused:
            self._log.info("paused_on_host", host=self._host, types=sorted(paused))
        self._paused = paused
        self._gate.pause(paused)  # the first time too: another maintainer may have left other types there
        return Result(news=(before and not drained) or resumed)
