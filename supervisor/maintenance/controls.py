"""Passes on what operators set: pool sizes, reloads, cancellations; and reports types that no pool takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.messages import chunks, clipped
from supervisor.store.base import Backlog, Controls
from supervisor.system.channel import Message

_REST = 0.2  # seconds between two checks while the database is changing
_RARELY = 60.0  # seconds between two when nothing changes
_MOST_CANCELS = 5000  # running jobs being cancelled at the same time; more of them have to wait for these
_CANCELS = 500  # in one message
_TYPE = 200  # characters of a type's name that are sent


@dataclass(frozen=True, slots=True)
class Told(Result):
    told: int = 0


class ControlPoller(Duty):
    """What was set for our own pools, and how many reloads were requested."""

    name = "controls"
    every = _RARELY
    rest = _REST
    quiet = True

    def __init__(self, controls: Controls, pools: Collection[str], send: Callable[[Message], None]) -> None:
        self._controls = controls
        self._pools = pools
        self._send = send
        self._told: Message = {}

    def run(self, now: float) -> Told:
        found = self._controls.current()
        sizes = {name: workers for name, workers in found.sizes.items() if name in self._pools}
        message = {"controls": {"sizes": sizes, "reloads": found.reloads}}
        if message == self._told:
            return Told()
        self._send(message)
        self._told = message
        return Told(1)


class UnhandledTypes(Duty):
    """Types with pending jobs that none of our pools takes; the store returns a bounded number of them."""

    name = "unhandled types"
    every = _RARELY
    rest = _REST
    quiet = True

    def __init__(self, backlog: Backlog, types: tuple[str, ...], send: Callable[[Message], None]) -> None:
        self._backlog = backlog
        self._types = types
        self._send = send
        self._told: list[str] = []

    def run(self, now: float) -> Told:
        types = [clipped(str(type_), _TYPE) for type_ in self._backlog.unhandled(self._types)]
        if types == self._told:
            return Told()
        self._send({"unhandled": types})
        self._told = types
        return Told(len(types))


class CancelPoller(Duty):
    """Running jobs of our own workers that are to be cancelled."""

    name = "cancels"
    every = _RARELY
    rest = _REST
    quiet = True

    def __init__(self, controls: Controls, own: str, send: Callable[[Message], None]) -> None:
        self._controls = controls
        self._own = own
        self._send = send
        self._told: list[tuple[int, int, str]] = []

    def run(self, now: float) -> Told:
        cancels = self._controls.cancels(self._own, _MOST_CANCELS)
        news = cancels if cancels != self._told else []
        for part in chunks(news, _CANCELS):
            self._send({"cancels": [list(cancel) for cancel in part]})
        self._told = cancels
        return Told(len(news))
