"""Watches the workers: what they have done, their heartbeats, the time limits of their jobs, their memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from supervisor.domain.process_health import Signs, Verdict, first_late, judge
from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.time_limits import Step
from supervisor.supervision.worker_process import CAUTIOUS, OVER_MEMORY, RECYCLED, WorkerProcess, named
from supervisor.system import kernel, signals
from supervisor.system.slot import Cancel, Snapshot, State
from supervisor.telemetry import events

_MEMORY_TICK = 10.0  # seconds between two measurements of an active worker that does not seem to have grown
_CAUTION = 30.0  # seconds: the suspects, which are due again, come before most other jobs
_DUMPING = 0.2  # seconds for a worker to write its stacks before it is killed
_SILENT = 1.5  # seconds without a heartbeat after which no thread of a worker can have run
_GROWN = 1.05  # growth since the last measurement after which it is measured immediately


def look_at(pool: Pool, worker: WorkerProcess, now: float) -> bool:
    """Note what a worker has done since the last look; the last one is after its end. Returns whether it has become
    ready.
    """
    slot = worker.slot.read()
    release = worker.release
    became_ready = worker.notice_ready(slot)
    if became_ready:
        worker.request.template.proven.add(pool.name)
        release.restarts = release.restarts.ready()
        pool.code.works(release)
        if worker.process.pid and worker.living and pool.weighs_workers:
            measure(pool, worker)  # starting more workers depends on it
    committed = slot.done - slot.unsettled
    if committed > slot.lost and release.restarts.early_deaths:  # one does not count if its program was lost
        release.restarts = release.restarts.committed_a_job()
    if slot.recycle_reason:
        worker.replace(RECYCLED[slot.recycle_reason])
    elif worker.living and is_cautious_enough(worker, committed, now) and (pool.grant is None or pool.grant.kept > 1):
        worker.replace(CAUTIOUS)  # not if nobody would work until its successor is ready, for lack of memory
    return became_ready


def measure(pool: Pool, worker: WorkerProcess) -> None:
    """Measure the memory of a worker and the processes it has started."""
    pid = worker.process.pid
    unique = kernel.memory_of_family(pid) or kernel.resident_of_family(pid)  # some may not be read
    worker.watched.unique = unique or worker.watched.unique
    if worker.is_typical:
        now, size = time.monotonic(), pool.size
        size.has_settled = size.has_settled or worker.watched.has_settled
        # Those without jobs are not measured again, but count.
        measured = [one for one in pool.workers.living() if one.is_typical] if size.memory.over(now) else [worker]
        size.memory = size.memory.seen((one.watched.unique for one in measured), now)


def is_cautious_enough(worker: WorkerProcess, committed: int, now: float) -> bool:
    """Whether a cautious worker has committed more jobs than were suspected. As long as it lives, it takes no batches
    and runs no jobs side by side. Not at once: other jobs may have come before the suspects.
    """
    return 0 < worker.request.caution < committed and now >= worker.asked_at + _CAUTION


def watch(pools: Pools, now: float, *, ticking: bool) -> list[float | None]:
    """Enforce the time limits of runs; once a tick, check the workers' heartbeats, teardowns and memory. Returns when
    to check each worker again, in monotonic seconds.
    """
    running = pools.running()
    for worker in running:
        if ticking:
            slot = worker.slot.read()
            judge_beat(worker, slot, now)
            limit_teardown(worker, slot, now)
            watch_memory(worker, slot, pools[worker.release.pool], now)
        enforce_deadline(worker, worker.slot.read(), now)
    return [worker.watched.ladder.due for worker in running]


def judge_beat(worker: WorkerProcess, slot: Snapshot, now: float) -> None:
    """Kill a worker that is stopped or stuck; tolerate one that is late but working."""
    settings = worker.release.settings
    starting = slot.state is State.STARTING
    if starting and now - worker.asked_at > settings.startup_timeout:
        worker.kill(Cause.STARTUP)
        return
    if now - slot.beat < settings.heartbeat_timeout:
        worker.watched.late = None
        return
    signs = Signs(now, slot.beat, *kernel.cpu_and_state(worker.process.pid))
    # A set-up may read a model from a slow disk while it holds the GIL: no heartbeat, and no CPU used.
    worker.watched.late = None if starting else first_late(worker.watched.late, signs)
    verdict = judge(signs, worker.watched.late, settings.heartbeat_timeout)
    if verdict is Verdict.STUCK:
        worker.process.signal(signals.DUMP_STACKS)  # of all its threads, which are kept for its job
    if verdict in (Verdict.STUCK, Verdict.STOPPED):
        worker.kill(Cause.STUCK if verdict is Verdict.STUCK else Cause.STOPPED, (slot.job, slot.token))


def limit_teardown(worker: WorkerProcess, slot: Snapshot, now: float) -> None:
    """Kill a worker whose teardown takes too long. Its heartbeat goes on, and no job has a time limit there."""
    watched, limit = worker.watched, worker.release.settings.shutdown_grace
    if not slot.ceased_at or slot.job or now - slot.ceased_at <= limit:
        return
    if not watched.overdue_since:
        watched.overdue_since = now
        events(process="supervisor").warning("teardown_timed_out", **named(worker), limit_seconds=limit)
        worker.process.signal(signals.DUMP_STACKS)  # for the log: they show where it hangs
    elif now - watched.overdue_since >= _DUMPING:
        worker.kill(Cause.TEARDOWN)


def watch_memory(worker: WorkerProcess, slot: Snapshot, pool: Pool, now: float) -> None:
    """Measure a worker that may have grown, and mark it for replacement if it exceeds max_memory.

    If the pool has a limit, an active worker is checked each time: the resident size is quick to read, and the
    unshared memory is measured only when it has grown.
    """
    memory, limit = worker.watched, pool.settings.max_memory
    worked = slot.done != memory.done
    due = worked and now - memory.measured_at >= _MEMORY_TICK
    if (limit is not None or pool.weighs_workers) and (slot.job or worked):
        resident = kernel.resident_of_family(worker.process.pid)
        if resident > memory.resident * _GROWN:
            memory.resident, due = resident, True
    if not due:
        return  # it was idle since, or cannot have grown much
    memory.done, memory.measured_at = slot.done, now
    measure(pool, worker)
    if limit is not None and memory.unique > limit:
        worker.replace(OVER_MEMORY)


def cancel(pools: Pools, runs: Iterable[tuple[int, int, str]], now: float) -> None:
    """Request that these runs stop, each given as job, token and the worker's incarnation."""
    for job, token, incarnation in runs:
        if (worker := pools.find(incarnation)) is not None:
            worker.slot.cancel(job, token, Cancel.REQUESTED)
            worker.watched.ladder.cancel(job, token, now)


def enforce_deadline(worker: WorkerProcess, slot: Snapshot, now: float) -> None:
    """Stop a job that is over its time limit or cancelled: interrupt, then kill."""
    ladder = worker.watched.ladder
    step = ladder.next_step(slot, now)
    if step is Step.INTERRUPT:
        if slot.places == 1:  # with concurrency, the worker has a limit for each run, and tells of each
            _tell_interrupted(worker, slot)
            worker.process.signal(signals.DUMP_STACKS)  # of all its threads, which are kept for its job
        worker.slot.cancel(slot.job, slot.token, ladder.reason)
    if step in (Step.INTERRUPT, Step.REPEAT):
        worker.process.signal(signals.INTERRUPT)
    elif step is Step.KILL:
        cause = Cause.TIME_LIMIT if ladder.reason is Cancel.TIMEOUT else Cause.CANCELLED
        if slot.places > 1 and slot.together > 1 and now - slot.beat > _SILENT:
            cause = Cause.SILENT  # the run that is shown could not end, whatever it did
        worker.kill(cause, ladder.run)


def _tell_interrupted(worker: WorkerProcess, slot: Snapshot) -> None:
    late = worker.watched.ladder.reason is Cancel.TIMEOUT
    fields: dict[str, Any] = {"limit_seconds": round(slot.deadline - slot.started, 3)} if late else {"why": "cancelled"}
    if slot.batch > 1:
        fields["batch"] = slot.batch
    event = "job_timed_out" if late else "job_interrupted"
    log, name = events(process="supervisor"), worker.request.name
    log.warning(event, pool=worker.release.pool, worker=name, job=slot.job, **fields)
