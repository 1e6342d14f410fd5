"""Which workers of a pool start now, and which leave: from its numbers, its code and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from supervisor.domain.process_health import is_far_over
from supervisor.domain.tenants import Grant
from supervisor.supervision.pool import Pool
from supervisor.supervision.worker_process import WorkerProcess, is_idle
from supervisor.system.slot import RecycleReason

_TOGETHER = 1.0  # seconds between two requests in which both workers count as requested at the same time


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


def _to_start(pool: Pool, now: float) -> Missing:
    current = pool.code.current
    wanted = missing(
        _counts(pool),
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
    found = leaving(_counts(pool), pool.scale.roof, fixed=fixed or pool.closing)
    if not stale and not any(found):
        return []
    far_over = [worker for worker in stale if _is_far_over(worker, pool.settings.max_memory)]
    youngest = sorted(_candidates(pool), key=lambda worker: -worker.asked_at)
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
        there = [w for w in pool.workers.living() if not w.leaving and (w.request.device or "") == device]
        surplus = len(there) - grant.most_on(device)
        if surplus > 0:
            there.sort(key=lambda one: (not one.stale, one.serving, not is_idle(one), -one.asked_at))
            chosen += there[:surplus]
    return chosen


def _counts(pool: Pool) -> Counts:
    living, staying = pool.workers.living(), pool.workers.staying()
    return Counts(
        target=pool.desired,
        staying=len(staying),
        starting=sum(not worker.is_ready for worker in staying),
        idle=sum(map(is_idle, staying)),
        stale=len(pool.workers.stale()),
        leaving=sum(worker.leaving for worker in living),
        unexplained=len(pool.workers) - len(living),
    )


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
    # Who may run jobs, or may have left processes behind that still run.
    taken = len(pool.workers.unswept) + sum(one.serving and _may_run(one) for one in pool.workers.values())
    if taken >= pool.scale.target:
        return None
    living = pool.workers.living()
    used = Counter(worker.request.device for worker in living if worker.serving)
    waiting = [worker for worker in living if not (worker.serving or worker.leaving)]
    ready = [worker for worker in waiting if worker.is_ready]
    best = min(ready, key=lambda one: (bool(one.stale), used[one.request.device], one.asked_at), default=None)
    if best is None or any(_comes_first(one, best, used) for one in waiting):
        return None
    return best


def _comes_first(one: WorkerProcess, ready: WorkerProcess, used: Mapping[str | None, int]) -> bool:
    """Whether a worker that is not ready yet, and was requested together with one that is, has a less used device."""
    together = one.asked_at < ready.asked_at + _TOGETHER
    return together and not one.is_ready and used[one.request.device] < used[ready.request.device]


def _may_run(worker: WorkerProcess) -> bool:
    """Whether a job may run in it, or a process that one has left behind. In its teardown it runs none."""
    if not worker.living:
        return not worker.end.swept
    slot = worker.slot.read()
    return not (slot.ceased_at and slot.alone)
