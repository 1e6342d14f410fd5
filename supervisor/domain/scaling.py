"""How many workers a pool should have, and with how many threads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from supervisor.domain.text import human

_SOON = 0.25  # seconds: a queue that the current workers empty within this time needs no more workers


class ScalingPolicy(NamedTuple):
    """A pool's bounds. `scale_down_delay` is seconds without need before a step down."""

    min_workers: int
    max_workers: int
    jobs_per_worker: int = 1
    scale_down_delay: float = 30.0


class Load(NamedTuple):
    """What is known about a pool now. Times are monotonic seconds.

    `busy` workers are running jobs; `size` counts all that are not leaving, including starting ones; `drain_rate` is
    jobs per second, 0 if unknown; `needed_at` is when more workers than `min_workers` were last
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
    fixed: int | None = None
    counted: bool = True


class Decision(NamedTuple):
    target: int
    reason: str
    needed: bool  # whether the current size is needed now


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
    wanted, reason = _wanted(load, policy)
    if wanted > policy.max_workers:
        wanted, limit = policy.max_workers, _limit(policy, "max_workers")
        all_ = f"all {wanted} workers are" if wanted > 1 else "its only worker is"
        reason = f"; {all_} busy" if load.busy >= wanted else f", {load.busy} busy; the limit is {limit}"
        reason = f"{load.due} due{reason}"
    current = min(load.target, policy.max_workers)
    if wanted > current:
        return Decision(wanted, reason, True)
    if wanted == current:
        return Decision(current, reason, wanted > policy.min_workers or current == policy.min_workers)
    return Decision(*_smaller(load, policy, current, wanted), False)


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


def _smaller(load: Load, policy: ScalingPolicy, current: int, wanted: int) -> tuple[int, str]:
    idle_for = load.now - max(load.needed_at, load.shrunk_at)
    if idle_for < policy.scale_down_delay:
        left = policy.scale_down_delay - idle_for
        return current, f"{load.due} due; one fewer in {human(left)} if nothing comes"
    return max(current - 1, wanted, load.busy), f"not needed for {human(idle_for)}"


OLD_VERSION = "old version"
"""Begins why a worker with the code from before a reload is to be replaced."""


def threads_per_worker(own: frozenset[int], pools: Iterable[tuple[frozenset[int], int]]) -> int:
    """The threads of one worker on the cores `own`; `pools` are (cores, most workers) of all pools, also its own."""
    rivals = sum(workers for cores, workers in pools if cores & own)
    return max(1, len(own) // max(1, rivals))
