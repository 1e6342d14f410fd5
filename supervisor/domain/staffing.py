"""Which workers a pool lacks, and which of them should go, by their numbers alone."""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """A pool's workers at one moment.

    `staying` ones are neither leaving nor to be replaced; so many of them are still `starting`, so many `idle`.
    `stale` ones are to be replaced and do not leave yet; `leaving` ones do. `unexplained` have died, and nobody
    knows yet why: that may say that another would die, too.
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
    """How many workers to start: of the present code, and of the code before it."""

    new: int = 0
    old: int = 0


class Leaving(NamedTuple):
    """How many of the stale ones should go now, how many idle ones, and how many whatever they do."""

    stale: int = 0
    idle: int = 0
    anyone: int = 0


def missing(counts: Counts, *, failed: bool = False, unproven: bool = False, isolated: bool = False) -> Missing:
    """What to start now.

    Replacements come one at a time, and before their predecessors go. After a set-up that `failed` a single
    worker tries. New code that is `unproven` is tried by one, too, while the old code keeps up the numbers. An
    `isolated` pool has one worker at a time.
    """
    nobody_tries = counts.starting == 0 and counts.unexplained == 0
    if isolated:
        return Missing(1 if counts.target and counts.living == 0 and counts.unexplained == 0 else 0)
    if unproven:
        old = counts.target - counts.stale - counts.unexplained
        return Missing(1 if counts.target and counts.staying == 0 and nobody_tries else 0, max(0, old))
    wanted = counts.target - counts.staying - counts.stale - counts.unexplained
    if wanted > 0:
        return Missing((1 if nobody_tries else 0) if failed else wanted)
    replace_one = counts.stale > 0 and counts.staying < counts.target and counts.starting == 0
    return Missing(1 if replace_one else 0)


def leaving(counts: Counts, roof: int | None = None, *, fixed: bool = False) -> Leaving:
    """Who should drain now: replaced ones whose successor is ready, and whoever is too many.

    A busy one is not asked to make room; it will be idle some day. But what an operator has `fixed` is kept to,
    and of more than the `roof` allows (memory is what it is about) one after another leaves between two jobs.
    """
    ready = counts.staying - counts.starting
    stale = 1 if counts.stale and ready + counts.stale > counts.target else 0
    surplus = max(0, counts.staying - max(counts.target, 0))
    if fixed:
        return Leaving(stale, anyone=surplus)
    idle = min(surplus, counts.idle)
    over = roof is not None and counts.staying - idle > max(roof, 1)
    return Leaving(stale, idle, anyone=1 if over and counts.leaving == 0 and not idle else 0)
