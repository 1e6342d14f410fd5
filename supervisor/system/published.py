"""What a supervisor with a lease publishes of its scoreboard, for those who cannot see that: on other hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from time import monotonic, time
from typing import Any, NamedTuple

from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot

_json = partial(json.dumps, separators=(",", ":"))
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
    workers = {number: _published(slot, ahead) for number, slot in board.present()}
    found = {
        "status": board.supervisor_status(),
        "clock": round(time() - board.gate.now()),
        "drained": bool(board.gate.drained),
    }
    while len(text := _json(found | {"workers": workers})) > _MOST_PUBLISHED and workers:
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
