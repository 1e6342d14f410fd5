"""Passes on what operators set: pool sizes, reloads, cancellations; and reports types that no pool takes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.messages import chunks, clipped
from supervisor.maintenance.posted import taken_elsewhere
from supervisor.store.base import Backlog, Controls, Registry
from supervisor.system.channel import Message

_REST = 0.2  # seconds between two checks while the database is changing
_RARELY = 60.0  # seconds between two when nothing changes
_MOST_CANCELS = 5000  # running jobs being cancelled at the same time; more of them have to wait for these
_CANCELS = 500  # in one message
_TYPE = 200  # characters of a type's name that are sent


class Poller(Duty):
    """Asks for what operators or programs have set, and sends it to the supervisor when it has changed."""

    every = _RARELY
    rest = _REST
    quiet = True

    def __init__(self, name: str, ask: Callable[[], list[Message]], send: Callable[[Message], None]) -> None:
        self.name = name
        self._ask = ask
        self._send = send
        self._told: list[Message] = []

    def run(self, now: float) -> Result:
        found = self._ask()
        if found != self._told:
            for message in found:
                self._send(message)
            self._told = found
        return Result()


def control_poller(controls: Controls, pools: Collection[str], host: str, send: Callable[[Message], None]) -> Poller:
    """What was set for our own pools on this host, and how many reloads were requested."""

    def ask() -> list[Message]:
        found = controls.current()
        sizes = {name: size for name in pools if (size := found.size_on(name, host)) is not None}
        return [{"controls": {"sizes": sizes, "reloads": found.reloads}}]

    return Poller("controls", ask, send)


def unhandled_types(
    backlog: Backlog, types: tuple[str, ...], send: Callable[[Message], None], registry: Registry
) -> Poller:
    """Types with pending jobs that none of our pools takes, and none of another host's; the store returns a bounded
    number of them.
    """

    def ask() -> list[Message]:
        found = backlog.unhandled(types)
        if found and (others := taken_elsewhere(registry)):
            found = backlog.unhandled([*types, *others])
        return [{"unhandled": [clipped(str(type_), _TYPE) for type_ in found]}]

    return Poller("unhandled types", ask, send)


def cancel_poller(controls: Controls, own: str, send: Callable[[Message], None]) -> Poller:
    """Running jobs of our own workers that are to be cancelled."""

    def ask() -> list[Message]:
        cancels = controls.cancels(own, _MOST_CANCELS)
        return [{"cancels": [list(cancel) for cancel in part]} for part in chunks(cancels, _CANCELS)]

    return Poller("cancels", ask, send)
