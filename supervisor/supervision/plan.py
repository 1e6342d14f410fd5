"""Which workers of a pool start now, and which leave: from its numbers, its code and its memory."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from supervisor.domain.memory_shares import Grant
from supervisor.domain.process_health import is_far_over
from supervisor.supervision.pool import Pool
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import RecycleReason

_TOGETHER = 1.0  # seconds between two requests in which both workers count as requested at the same time


class Missing(NamedTuple):
    """How many workers to start: with the current code, and with the previous code."""

    new: int = 0
    old: int = 0


class Plan(NamedTuple):
    """How many workers to start with the current and with the old code, and who is to leave."""

    start: Missing
    leave: list[WorkerProcess]


def plan(pool: Pool, now: float) -> Plan:
    """What to do now; `now` is monotonic seconds."""
    wanted = allowed(pool, _lacking(pool, now), now)
    if pool.places is not None:
        wanted = within(wanted, pool.places, old_first=pool.code.current.failed)
    return Plan(wanted, _to_leave(pool))


def allowed(pool: Pool, wanted: Missing, now: float) -> Missing:
    """How many of these may start now: none with code that is in its back-off."""
    current, old = pool.code.current, pool.code.old
    new = wanted.new if now >= current.not_before else 0
    return Missing(new, wanted.old if old is not None and now >= old.not_before else 0)


def within(wanted: Missing, room: int, *, old_first: bool) -> Missing:
    """What may start where there is memory for so many workers. `old_first`: the new code has failed."""
    new = min(wanted.new, max(0, room - wanted.old) if old_first else room)
    return Missing(new, min(wanted.old, room - new))


def next_try(pool: Pool) -> float | None:
    """When the last back-off of a pool that lacks workers ends; None if there is none."""
    if pool.closing or len(pool.workers.living()) >= pool.desired:
        return None
    old = pool.code.old
    return max(pool.code.current.not_before, 0.0 if old is None else old.not_before) or None


def _lacking(pool: Pool, now: float) -> Missing:
    """Replacements start one at a time, before their predecessors exit. After a set-up that failed, a single worker
    tries. New code that has not worked is tried by one worker, too, while the old code keeps up the numbers: also in an
    isolated pool, which has one worker at a time otherwise.
    """
    current, target, staying = pool.code.current, pool.desired, pool.workers.staying()
    starting, stale = sum(not worker.is_ready for worker in staying), len(pool.workers.stale())
    unexplained = len(pool.workers) - len(pool.workers.living())  # another one might die for the same reason
    nobody_tries = not (starting or unexplained)
    if pool.code.old is not None and current.is_doubtful:
        old = 0 if pool.needs_canary_worker else max(0, target - stale - unexplained)
        return Missing(int(target > 0 and not staying and nobody_tries), old)
    if current.template_deaths.isolated(now):
        return Missing(int(target > 0 and not pool.workers))
    lacking = target - len(staying) - stale - unexplained
    if lacking > 0:
        return Missing(int(nobody_tries) if current.failed else lacking)
    return Missing(int(stale > 0 and len(staying) < target and not starting))


def _to_leave(pool: Pool) -> list[WorkerProcess]:
    """Replaced workers whose successor is ready, and surplus ones. A busy worker is not asked to exit; it will be idle
    eventually. But the size that an operator has fixed is enforced.
    """
    staying, stale = pool.workers.staying(), pool.workers.stale()
    if pool.needs_canary_worker:
        return [worker for worker in stale if worker.is_idle]
    if pool.grant is not None and (evicted := _evicted(pool, pool.grant)):
        return evicted
    limit = pool.settings.max_memory  # as measured with a tick, or by itself after a job: it may grow quickly
    chosen = [worker for worker in stale if worker.slot.read().recycle_reason is RecycleReason.FAR_LARGE]
    chosen += [worker for worker in stale if limit is not None and is_far_over(worker.watched.unique, limit)]
    if sum(worker.is_ready for worker in staying) + len(stale) > pool.desired:
        chosen += stale[:1]
    surplus = max(0, len(staying) - pool.desired)
    youngest = sorted(_candidates(pool), key=lambda worker: (not worker.is_idle, -worker.asked_at)) if surplus else []
    if not (pool.scale.fixed is not None or pool.closing):
        youngest = [worker for worker in youngest if worker.is_idle]
    return list(dict.fromkeys([*chosen, *youngest[:surplus]]))


def _evicted(pool: Pool, grant: Grant) -> list[WorkerProcess]:
    """Those for which there is no memory: on each device, stale ones, spares, idle ones, the largest first."""
    if grant.crowded and not any(worker.leaving for worker in pool.workers.values()):
        return pool.workers.stale()[:1]
    chosen = []
    for device in grant.keep:
        there = [w for w in pool.workers.living() if not w.leaving and (w.request.device or "") == device]
        surplus = len(there) - grant.most_on(device)
        if surplus > 0:
            there.sort(key=lambda one: (not one.stale, one.serving, not one.is_idle, -one.watched.unique))
            chosen += there[:surplus]
    return chosen


def _candidates(pool: Pool) -> list[WorkerProcess]:
    """Those of which surplus ones leave: the ones that run jobs, if too many do, else spares before others."""
    staying = pool.workers.staying()
    serving = [worker for worker in staying if worker.serving]
    return serving if len(serving) > pool.scale.target else [one for one in staying if not one.serving] or serving


# Spares: no more workers than the target may run jobs


def next_to_serve(pool: Pool) -> WorkerProcess | None:
    """The spare that takes over a free place now: rather not one that is to be replaced, and one whose device the
    fewest others use.
    """
    # Who may run jobs, or may have left processes behind that still run. In its teardown a worker runs none.
    serving = [worker for worker in pool.workers.values() if worker.serving]
    slots = [worker.slot.read() for worker in serving if worker.living]
    ended = sum(not (worker.living or worker.end.swept) for worker in serving)
    taken = len(pool.workers.unswept) + ended + sum(not (slot.ceased_at and slot.alone) for slot in slots)
    if taken >= pool.scale.target:
        return None
    used = Counter(worker.request.device for worker in serving if worker.living)
    waiting = [worker for worker in pool.workers.living() if not (worker.serving or worker.leaving)]
    ready = [worker for worker in waiting if worker.is_ready]
    best = min(ready, key=lambda one: (bool(one.stale), used[one.request.device], one.asked_at), default=None)
    if best is None:
        return None
    # One that was requested together with it, and is slower, may have a less used device.
    together = [one for one in waiting if not one.is_ready and one.asked_at < best.asked_at + _TOGETHER]
    return None if any(used[one.request.device] < used[best.request.device] for one in together) else best
