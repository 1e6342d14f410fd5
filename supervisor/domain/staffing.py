"""Which workers a pool lacks, on which device one starts, and which of them should exit: from their numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OLD_VERSION = "old version"
"""Begins why a worker with the code from before a reload is to be replaced."""


class Counts(NamedTuple):
    """A pool's workers at one moment.

    `staying` workers are neither leaving nor to be replaced; of these, `starting` and `idle` are counted separately.
    `stale` ones are to be replaced and are not leaving yet; `leaving` ones are. `unexplained` have died for a reason
    that is not known yet: another one might die for the same reason.
    """

    target: int
    staying: int = 0
    starting: int = 0
    idle: int = 0
    stale: int = 0
    leaving: int = 0
    unexplained: int = 0

    @property
    def living(self) -> int:
        return self.staying + self.stale + self.leaving


class Missing(NamedTuple):
    """How many workers to start: with the current code, and with the previous code."""

    new: int = 0
    old: int = 0


class Leaving(NamedTuple):
    """How many stale and how many idle workers should exit now, and how many regardless of their state."""

    stale: int = 0
    idle: int = 0
    anyone: int = 0


def missing(counts: Counts, *, failed: bool = False, unproven: bool = False, isolated: bool = False) -> Missing:
    """What to start now.

    Replacements start one at a time, before their predecessors exit. After a set-up that `failed`, a single
    worker tries. New code that is `unproven` is tried by one worker, too, while the old code keeps up the numbers:
    also in an `isolated` pool, which has one worker at a time otherwise.
    """
    nobody_tries = counts.starting == 0 and counts.unexplained == 0
    if unproven:
        old = counts.target - counts.stale - counts.unexplained
        return Missing(1 if counts.target and counts.staying == 0 and nobody_tries else 0, max(0, old))
    if isolated:
        return Missing(1 if counts.target and counts.living == 0 and counts.unexplained == 0 else 0)
    wanted = counts.target - counts.staying - counts.stale - counts.unexplained
    if wanted > 0:
        return Missing((1 if nobody_tries else 0) if failed else wanted)
    replace_one = counts.stale > 0 and counts.staying < counts.target and counts.starting == 0
    return Missing(1 if replace_one else 0)


def within(wanted: Missing, room: int, *, old_first: bool) -> Missing:
    """What may start where there is memory for so many workers. `old_first`: the new code has failed."""
    if old_first:
        old = min(wanted.old, room)
        return Missing(min(wanted.new, room - old), old)
    new = min(wanted.new, room)
    return Missing(new, min(wanted.old, room - new))


def spares_kept(wanted: int, target: int, roof: int | None, *, measured: bool) -> int:
    """How many workers to keep beyond the `target`, set up and without jobs. `roof` is how many the memory allows in
    all; while it is not `measured`, there is none. Workers come before spares; a pool at zero has none of either.
    """
    if target <= 0 or not measured:
        return 0
    return wanted if roof is None else max(0, min(wanted, roof - target))


def leaving(counts: Counts, roof: int | None = None, *, fixed: bool = False) -> Leaving:
    """Which workers should drain now: replaced ones whose successor is ready, and surplus ones.

    A busy worker is not asked to exit; it will be idle eventually. But the size that an operator has `fixed` is
    enforced, and if there are more than the `roof` (the memory limit) allows, one after another exits between jobs.
    """
    ready = counts.staying - counts.starting
    stale = 1 if counts.stale and ready + counts.stale > counts.target else 0
    surplus = max(0, counts.staying - max(counts.target, 0))
    if fixed:
        return Leaving(stale, anyone=surplus)
    idle = min(surplus, counts.idle)
    over = roof is not None and counts.staying - idle > max(roof, 1)
    return Leaving(stale, idle, anyone=1 if over and counts.leaving == 0 and not idle else 0)


def assign(devices: Sequence[str], used: Iterable[str | None], kept: Iterable[str | None] = ()) -> str | None:
    """The device with the fewest workers, None without devices.

    `used` are the devices of the current workers. If several devices have equally few, the first of `kept`
    wins: the device that the worker of that name had in its previous life.
    """
    if not devices:
        return None
    counts = Counter(used)
    least = min(counts[device] for device in devices)
    fit = [device for device in devices if counts[device] == least]
    return next((device for device in kept if device in fit), fit[0])
