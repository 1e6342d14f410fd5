"""How many workers a pool should have, which ones start and exit, on which device and with how many threads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from supervisor.domain.text import human

_SOON = 0.25  # seconds: a queue that the current workers empty within this time needs no more workers


class ScalingPolicy(NamedTuple):
    """A pool's bounds. `scale_down_delay` is seconds without need before a step down."""

    min_workers: int
    max_workers: int
    jobs_per_worker: int = 1
    scale_down_delay: float = 30.0
    memory_budget: int | None = None  # bytes, all workers together


class Load(NamedTuple):
    """What is known about a pool now. Times are monotonic seconds.

    `busy` workers are running jobs; `size` counts all that are not leaving, including starting ones; `drain_rate` is
    jobs per second, 0 if unknown; `worker_memory` is the largest worker's bytes, 0 if unknown, and then a pool with a
    budget does not grow beyond its first worker; `needed_at` is when more workers than `min_workers` were last
    needed; `fixed` is the size an operator has set; `counted` tells whether `due` is known.
    """

    due: int
    busy: int
    size: int
    target: int
    now: float
    needed_at: float
    shrunk_at: float
    oldest_age: float = 0.0
    drain_rate: float = 0.0
    worker_memory: int = 0
    fixed: int | None = None
    counted: bool = True


class Decision(NamedTuple):
    target: int
    reason: str
    needed: bool  # whether the current size is needed now
    roof: int | None = None  # workers that memory_budget allows, None for no limit


class Taken(NamedTuple):
    """What a busy worker holds: this many jobs, the first taken at a monotonic second when it had none."""

    since: float
    jobs: int


def still_due(due: int, measured_at: float, taken: Iterable[Taken], places: int = 0) -> int:
    """Of the jobs that were due at the last look, those that no worker has taken since, and for which busy workers have
    no `places` either.

    No job must count twice: as waiting, and through the worker that is busy with it.
    """
    return max(0, due - places - sum(max(1, one.jobs) for one in taken if one.since > measured_at))


def decide(load: Load, policy: ScalingPolicy) -> Decision:
    """Up at once; down by one step after a delay without need; never below the number of busy workers."""
    if load.fixed is not None:
        return Decision(load.fixed, f"an operator set {load.fixed}", needed=True)
    budget, each = policy.memory_budget, load.worker_memory
    fits = None if budget is None or each == 0 else max(1, budget // each)
    wanted, reason = _wanted(load, policy)
    roof, roof_reason = _roof(load, policy, fits)
    if wanted > roof:
        wanted, reason = roof, roof_reason
    current = min(load.target, roof)
    if wanted > current:
        return Decision(wanted, reason, True, fits)
    if wanted == current:
        return Decision(current, reason, wanted > policy.min_workers or current == policy.min_workers, fits)
    return Decision(*_smaller(load, policy, current, wanted), False, fits)


def _wanted(load: Load, policy: ScalingPolicy) -> tuple[int, str]:
    if load.due == 0:
        kept = max(policy.min_workers, load.busy)
        if load.busy > policy.min_workers:
            return kept, f"nothing due, {load.busy} busy"
        limit = _limit(policy, "min_workers")
        return kept, f"nothing due: {limit}" if load.counted else f"{limit}; due jobs have not been counted yet"
    if load.size and load.drain_rate * _SOON > load.due and load.oldest_age < _SOON:
        kept = min(max(policy.min_workers, load.size), policy.max_workers)
        return kept, f"{load.due} due, done within {human(_SOON)} at {load.drain_rate:.0f} a second"
    need = load.busy + math.ceil(load.due / policy.jobs_per_worker)
    if need <= policy.min_workers:
        return policy.min_workers, f"{load.due} due: {_limit(policy, 'min_workers')} is enough"
    return need, f"{load.due} due, {load.busy} busy"


def _limit(policy: ScalingPolicy, key: Literal["min_workers", "max_workers"]) -> str:
    """A limit by the key that the user has written: `workers` if the size is fixed."""
    return f"{'workers' if policy.min_workers == policy.max_workers else key} = {getattr(policy, key)}"


def _roof(load: Load, policy: ScalingPolicy, fits: int | None) -> tuple[int, str]:
    """The most workers allowed, and which limit says so. `fits`: how many the memory budget holds."""
    roof = policy.max_workers
    if policy.memory_budget is not None and fits is None and roof > 1:
        return max(1, min(load.size, roof)), "memory_budget: measuring the first worker"
    if policy.memory_budget is not None and fits is not None and fits < roof:
        each, budget = load.worker_memory >> 20, policy.memory_budget >> 20
        return fits, f"memory_budget: {fits} workers of {each} MiB fit into {budget} MiB"
    return roof, f"{load.due} due, {load.busy} busy: {_limit(policy, 'max_workers')}"


def _smaller(load: Load, policy: ScalingPolicy, current: int, wanted: int) -> tuple[int, str]:
    idle_for = load.now - max(load.needed_at, load.shrunk_at)
    if idle_for < policy.scale_down_delay:
        left = policy.scale_down_delay - idle_for
        return current, f"{load.due} due; one fewer in {human(left)} if nothing comes"
    return max(current - 1, wanted, load.busy), f"not needed for {human(idle_for)}"


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


def threads_per_worker(own: frozenset[int], pools: Iterable[tuple[frozenset[int], int]]) -> int:
    """The threads of one worker on the cores `own`; `pools` are (cores, most workers) of all pools, also its own."""
    rivals = sum(workers for cores, workers in pools if cores & own)
    return max(1, len(own) // max(1, rivals))
