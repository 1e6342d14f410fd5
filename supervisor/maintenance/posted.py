"""What a supervisor posts with its lease: a copy of its scoreboard for other hosts, which cannot read that."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

from supervisor.domain.job import Claim
from supervisor.maintenance.slot_reader import PRESENT
from supervisor.store.base import Lease, Registry
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import SLOT_BYTES, RecycleReason, Slot, Snapshot, State

_MOST = 512 * 1024  # characters; more workers than fit are left out


class Posted(NamedTuple):
    """`status` is the supervisor's; `workers` by their slots, with times of our own monotonic clock; its host's
    `clock` is so many seconds ahead of the server's. `drained`: its workers claim nothing any more.
    """

    status: dict[str, Any]
    workers: Mapping[int, Snapshot]
    clock: int = 0
    drained: bool = False

    def begun(self, slot: int, held: Collection[Claim]) -> tuple[tuple[int, int] | None, int]:
        """Which of these claims of a dead worker had begun, and how many ran together; None: that is not known, since
        it may have begun one after this was posted.
        """
        worker = self.workers.get(slot)
        if worker is None:
            return None, 1
        if worker.places > 1:
            return None, len(held)
        run = worker.job, worker.token
        return (run, worker.together) if run in {(claim.job_id, claim.token) for claim in held} else (None, 1)


def post(board: Scoreboard) -> str:
    """As JSON. It is the same text until something changes: nothing in it tells a worker's age or its heartbeat."""
    ahead = board.gate.now() - monotonic()
    workers: list[Any] = [_told(number, slot, ahead) for number, slot in present(board)]
    text = _encoded(board, workers)
    while len(text) > _MOST and workers:
        del workers[len(workers) // 2 :]
        text = _encoded(board, workers)
    return text


def _encoded(board: Scoreboard, workers: list[Any]) -> str:
    told = {
        "status": board.supervisor_status(),
        "workers": workers,
        "clock": round(time() - board.gate.now()),
        "drained": board.gate.drained,
    }
    return json.dumps(told, separators=(",", ":"))


def present(board: Scoreboard) -> Iterator[tuple[int, Snapshot]]:
    """The workers that exist, by their slots."""
    slots = ((number, board.slot(number).read()) for number in range(1, board.highest + 1))
    return ((number, slot) for number, slot in slots if slot.state in PRESENT)


def _told(number: int, slot: Snapshot, ahead: float) -> list[Any]:
    run = [slot.job, slot.token, round(slot.started + ahead), slot.batch, slot.running] if slot.job else []
    rest = [slot.claims, slot.done, slot.progress, slot.text, slot.places, slot.unsettled]
    state = State.IDLE if slot.state is State.SPARE else slot.state  # which hosts with an older release do not know
    return [number, slot.incarnation, slot.name, slot.pid, int(state), rest, run]


def read(text: str, now: float = 0.0) -> Posted:
    """Whatever the text is: another program, or another version of this one, may have written it. `now`: Unix time."""
    try:
        found = json.loads(text)
        status = dict(found["status"])
        if not all(isinstance(pool, dict) for pool in status.get("pools", {}).values()):
            raise TypeError("a pool is none")
        workers = dict(_worker(told, monotonic() - now) for told in found["workers"])
        return Posted(status, workers, int(found.get("clock", 0)), bool(found.get("drained")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return Posted({}, {})


def taken_elsewhere(registry: Registry) -> set[str]:
    """The types that pools of supervisors with a lease take, as they have posted it."""
    pools = [pool for lease in registry.leases().values() if lease.left > 0 for pool in _pools(lease)]
    return {str(type_) for pool in pools for type_ in pool.get("types", ())}


def _pools(lease: Lease) -> list[dict[str, Any]]:
    return list(read(lease.posted).status.get("pools", {}).values())


def _worker(told: list[Any], behind: float) -> tuple[int, Snapshot]:
    number, incarnation, name, pid, state, rest, run = told
    claims, done, progress, text, places, unsettled = rest
    slot = Slot(memoryview(bytearray(SLOT_BYTES)))
    slot.assign(str(incarnation), str(name))
    slot.tell(str(text))
    job, token, started, batch, running = run or (0, 0, 0, 1, 0)
    return int(number), Snapshot(
        State(state),
        int(pid),
        monotonic(),
        int(job),
        int(token),
        float(started) + behind,
        0.0,
        int(claims),
        int(batch),
        int(done),
        None if progress is None else float(progress),
        int(unsettled),
        0,
        0,
        RecycleReason.NOT,
        False,
        0.0,
        False,
        slot.read().texts,
        int(running),
        max(1, int(places)),
    )
