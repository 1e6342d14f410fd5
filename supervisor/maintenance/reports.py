"""What the maintainer reports to the supervisor: backlogs, what operators set, and whether it can work.

The size of a message is bounded, whatever the database holds: the channel limits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from supervisor.domain.duty import Duty, Result
from supervisor.domain.errors import StoreError, StoreGone
from supervisor.domain.text import text_of
from supervisor.maintenance.lease import taken_elsewhere
from supervisor.maintenance.scheduler import Items
from supervisor.store.base import Backlog, ClaimLocks, Controls, Depth, JobSelector, Registry
from supervisor.system.channel import Message
from supervisor.system.scoreboard import ClaimGate, Scoreboard
from supervisor.system.slot import State
from supervisor.telemetry import events

Item = TypeVar("Item")
Send = Callable[[Message], None]

_REASON = 1000  # characters


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """At most `size` items at a time. Yields nothing if there are none."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def trouble_of(error: StoreError | None) -> dict[str, Any]:
    """Why the database cannot be used; an empty text if it can."""
    gone = ("replaced" if error.replaced else "removed") if isinstance(error, StoreGone) else ""
    return {"trouble": "" if error is None else text_of(error, _REASON), "gone": gone}


_REST = 0.2  # seconds between two checks while the database is changing. The same for all: they share wake-ups
_COST, _LONGEST_REST = 20, 10.0  # the rest is at least so many times what a check took, up to so many seconds
_RARELY = 60.0  # seconds between two when nothing changes
_MOST_CANCELS = 5000  # running jobs being cancelled at the same time; more of them have to wait for these
_CANCELS = 500  # in one message


class Poller(Duty):
    """Asks for what programs have set, and sends it to the supervisor when it has changed."""

    every = _RARELY
    quiet = True

    def __init__(self, name: str, ask: Callable[[], list[Message]], send: Send, rest: float = _REST) -> None:
        self.name = name
        self.rest = self._rest = rest  # longer after a slow check
        self._ask = ask
        self._send = send
        self._sent: list[Message] = []

    def run(self, now: float) -> Result:
        began = time.monotonic()
        found = self._ask()
        self.rest = max(self._rest, min(_COST * (time.monotonic() - began), _LONGEST_REST))
        changed = found != self._sent
        for message in found if changed else ():
            self._send(message)
        self._sent = found
        return Result(news=changed)


def control_settings(
    controls: Controls, pools: Collection[str], host: str, gate: ClaimGate, scheduled: Callable[[int], object] = int
) -> list[Message]:
    """What operators have set for our own pools on this host, and how many reloads they have requested. From here on
    its workers claim nothing if they have drained the host. `scheduled` is told how often schedules were changed.
    """
    found = controls.current()
    scheduled(found.schedules)
    drained = host in found.drained
    if drained != bool(gate.drained):
        gate.drained = drained
        events(process="maintainer").info("drained" if drained else "undrained", host=host)
    sizes = {name: size for name in pools if (size := found.size_on(name, host)) is not None}
    return [{"controls": {"sizes": sizes, "reloads": found.reloads}, "drained": drained}]


def unhandled_types(backlog: Backlog, types: Sequence[str], registry: Registry) -> list[Message]:
    """Types with pending jobs that none of our pools takes, and none of another host's; the store returns a bounded
    number of them.
    """
    found = backlog.unhandled(types)
    if found and (others := taken_elsewhere(registry)):
        found = backlog.unhandled([*types, *others])
    return [{"unhandled": [text_of(type_) for type_ in found]}]


def cancel_requests(controls: Controls, own: str) -> list[Message]:
    """Running jobs of our own workers that are to be cancelled."""
    cancels = controls.cancels(own, _MOST_CANCELS)
    return [{"cancels": [list(cancel) for cancel in part]} for part in chunks(cancels, _CANCELS)]


COUNT_LIMIT = 10_000  # due jobs counted for a pool: more makes no difference to any decision
_LATE = 0.0005  # seconds after the time of a delayed job, so that it is due by then
_POOLS = 200  # in one message


class DepthGauge(Duty):
    """Measures after changes, while anything waits, and when the next delayed job becomes due. While nothing may be
    claimed, as `is_open` says, nothing counts as due: no worker need be started for it.
    """

    name = "depths"
    rest = _REST
    quiet = True

    def __init__(
        self,
        backlog: Backlog,
        pools: Mapping[str, JobSelector],
        send: Send,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backlog = backlog
        self._pools = pools
        self._send = send
        self._is_open = is_open
        self._depths: dict[str, Depth] = {}
        self._looked: dict[str, float] = {}  # when each was measured, in monotonic seconds
        self._items: Items[str] = Items("pool")
        self.every = 1.0

    def next_at(self, now: float) -> float | None:
        times = [depth.next_due + _LATE for depth in self._depths.values() if depth.next_due is not None]
        again = self._items.next_try(now)
        return min([*times, *([] if again is None else [again])], default=None)

    def run(self, now: float) -> Result:
        measured = dict(self._depths)

        def measure(name: str) -> int:
            looked = time.monotonic()  # taken before: jobs claimed during the count may be counted as due
            measured[name] = self._backlog.depth(self._pools[name], now, COUNT_LIMIT) if self._is_open() else Depth()
            self._looked[name] = looked
            return 0

        result = self._items.each(self._pools, measure)
        # A backlog is sent again even if it is unchanged: the older a measurement, the less it counts.
        sent = [name for name, depth in measured.items() if depth.due or depth != self._depths.get(name)]
        for part in chunks(sent, _POOLS):
            self._send({"depths": {name: self._message_of(name, measured[name], now) for name in part}})
        # While some jobs are due, others become due without a timer of their own.
        due = any(depth.due for depth in measured.values())
        news = measured != self._depths and due  # a delayed job becomes due without a commit
        self._depths = measured
        self.every = 1.0 if due else 60.0
        return result._replace(news=news)

    def _message_of(self, name: str, depth: Depth, now: float) -> dict[str, float]:
        age = 0.0 if depth.oldest is None else max(0.0, now - depth.oldest)
        return {"due": depth.due, "oldest_age": age, "at": self._looked[name]}


_RESTING = (State.IDLE, State.DRAINING, State.SPARE)
_BURST_PAUSE = 0.1  # seconds between two checks
_RETRIES_WITHIN = 600.0  # seconds: the longest pause between two attempts, unless `retry.max` says otherwise
_MOST_LEFT = 1000  # jobs


@dataclass(eq=False)
class BurstWatch(Duty):
    """A burst is over when nothing is due or running, and nothing is due for another attempt, or may start by a rate,
    within ten minutes. Jobs that are held then stay so: nothing makes room for them.
    """

    name = "burst"
    quiet = True

    backlog: Backlog
    locks: ClaimLocks
    board: Scoreboard
    pools: tuple[JobSelector, ...]
    own: str
    since: float
    send: Send

    def __post_init__(self) -> None:
        self._types = tuple(sorted({t for wanted in self.pools for t in wanted.types}))
        self.every = _BURST_PAUSE

    def run(self, now: float) -> Result:
        began = time.monotonic()
        rest, done = self._at_rest()
        over = rest and not any(self.backlog.unfinished(wanted, now, _RETRIES_WITHIN) for wanted in self.pools)
        over = over and not self.locks.has_claims(self.own)
        # No worker may have claimed anything in between.
        over = over and self._at_rest() == (True, done)
        pending, failed = self.backlog.progress_of(self._types, self.since)
        left = self.backlog.left_behind(self._types, _MOST_LEFT) if over else []
        self.send({"burst": {"over": over, "pending": pending, "failed": failed, "left": left}})
        # Counting a long queue takes a while, and must not slow the workers down.
        self.every = max(_BURST_PAUSE, 20 * (time.monotonic() - began))
        return Result()

    def _at_rest(self) -> tuple[bool, int]:
        """Whether no worker holds a claim or is starting, and the jobs done by all."""
        workers = [slot for _, slot in self.board.present()]
        return all(w.state in _RESTING and w.claims == 0 and w.job == 0 for w in workers), sum(w.done for w in workers)
