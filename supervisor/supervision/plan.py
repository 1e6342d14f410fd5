"""Which workers of a pool start now, and which leave: from its numbers, its code and its memory."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.domain.memory import Grant, is_far_over
from supervisor.domain.scaling import Missing, leaving, missing, within
from supervisor.supervision.pool import Pool
from supervisor.supervision.pool_workers import is_idle
from supervisor.supervision.release import ImageTrial
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import RecycleReason


class Plan(NamedTuple):
    """How many workers to start with the current and with the old code, and who is to leave."""

    start: Missing
    leave: list[WorkerProcess]


def plan(pool: Pool, now: float) -> Plan:
    """What to do now; `now` is monotonic seconds."""
    return Plan(_to_start(pool, now), _to_leave(pool))


def allowed(pool: Pool, wanted: Missing, now: float) -> Missing:
    """How many of these may start now: none with code that is in its back-off."""
    current, old = pool.code.current, pool.code.old
    return Missing(
        0 if now < current.not_before else wanted.new,
        0 if old is None or now < old.not_before else wanted.old,
    )


def next_try(pool: Pool) -> float | None:
    """When the last back-off of a pool that lacks workers ends; None if there is none."""
    if pool.closing or len(pool.workers.living()) >= pool.desired:
        return None
    old = pool.code.old
    return max(pool.code.current.not_before, 0.0 if old is None else old.not_before) or None


def needs_image_trial(pool: Pool) -> bool:
    """Whether its new code is to be loaded without a worker, to see whether that works."""
    due = pool.code.current.trial is ImageTrial.DUE and not pool.closing
    return due and pool.asleep and not pool.needs_canary_worker


def _to_start(pool: Pool, now: float) -> Missing:
    current = pool.code.current
    wanted = missing(
        pool.workers.counts(pool.desired),
        failed=current.failed,
        unproven=pool.code.old is not None and current.is_doubtful,
        isolated=current.template_deaths.isolated(now),
    )
    if pool.needs_canary_worker:
        wanted = wanted._replace(old=0)
    wanted = allowed(pool, wanted, now)
    return wanted if pool.places is None else within(wanted, pool.places, old_first=current.failed)


def _to_leave(pool: Pool) -> list[WorkerProcess]:
    if pool.needs_canary_worker:
        return [worker for worker in pool.workers.stale() if is_idle(worker)]
    if pool.grant is not None and (evicted := _evicted(pool, pool.grant)):
        return evicted
    fixed, stale = pool.scale.fixed is not None, pool.workers.stale()
    found = leaving(pool.workers.counts(pool.desired), pool.scale.roof, fixed=fixed or pool.closing)
    if not stale and not any(found):
        return []
    far_over = [worker for worker in stale if _is_far_over(worker, pool.settings.max_memory)]
    youngest = sorted(pool.workers.candidates(pool.scale.target), key=lambda worker: -worker.asked_at)
    idle = [worker for worker in youngest if is_idle(worker)]
    largest = sorted(youngest, key=lambda worker: (not is_idle(worker), -worker.memory.unique))
    anyone = [*idle, *(w for w in youngest if w not in idle)] if fixed else largest
    chosen = [*far_over, *stale[: found.stale], *idle[: found.idle], *anyone[: found.anyone]]
    return list(dict.fromkeys(chosen))


def _is_far_over(worker: WorkerProcess, limit: int | None) -> bool:
    """As measured with a tick, or by itself after a job: it may grow by much between two ticks."""
    measured = limit is not None and is_far_over(worker.memory.unique, limit)
    return measured or worker.slot.read().recycle_reason is RecycleReason.FAR_LARGE


def _evicted(pool: Pool, grant: Grant) -> list[WorkerProcess]:
    """Those for which there is no memory: on each device, stale ones, spares, idle ones, the youngest first."""
    if grant.crowded and not any(worker.leaving for worker in pool.workers.living()):
        return pool.workers.stale()[:1]
    chosen = []
    for device in grant.keep:
        there = [w for w in pool.workers.living() if not w.leaving and (w.device or "") == device]
        surplus = len(there) - grant.most_on(device)
        if surplus > 0:
            there.sort(key=lambda one: (not one.stale, one.serving, not is_idle(one), -one.asked_at))
            chosen += there[:surplus]
    return chosen
