"""Look after running workers: their beats, their jobs' time limits, their memory."""

from __future__ import annotations

from supervisor.domain.liveness import Signs, Verdict, judge
from supervisor.processes import autopsy
from supervisor.processes.deadlines import Step
from supervisor.processes.worker_process import WorkerProcess
from supervisor.system import kernel, signals
from supervisor.system.scoreboard import Cancel, State


def judge_beat(worker: WorkerProcess, now: float) -> None:
    """Kill what is stopped or stuck; tolerate what is late but working."""
    settings, slot = worker.pool.settings, worker.slot.read()
    starting = slot.state is State.STARTING
    if starting and now - worker.asked_at > settings.startup_timeout:
        worker.kill(autopsy.STARTUP)
        return
    if now - slot.beat < settings.heartbeat_timeout:
        worker.late = None
        return
    cpu, state = kernel.cpu_and_state(worker.pid)
    signs = Signs(now, slot.beat, cpu, state)
    # A set-up may read a model from a slow disk with the interpreter's lock held: no beat, and no CPU used.
    worker.late = None if starting else worker.late or signs
    verdict = judge(signs, worker.late, settings.heartbeat_timeout)
    if verdict is Verdict.STUCK:
        worker.signal(signals.DUMP_STACKS)
        worker.kill(autopsy.STUCK)
    elif verdict is Verdict.STOPPED:
        worker.kill(autopsy.STOPPED)


def enforce_deadline(worker: WorkerProcess, now: float) -> float | None:
    """Stop a job that is over its time or cancelled: interrupt, then kill.

    Returns when to look again, in monotonic seconds; None while nothing limits it.
    """
    slot = worker.slot.read()
    step = worker.enforcement.next_step(slot, now)
    if step is Step.INTERRUPT:
        worker.signal(signals.DUMP_STACKS)
        worker.slot.request_cancel(slot.job, slot.token, worker.enforcement.reason)
        worker.signal(signals.INTERRUPT)
    elif step is Step.KILL:
        over = worker.enforcement.reason is Cancel.TIMEOUT
        worker.kill(autopsy.TIME_LIMIT if over else autopsy.CANCELLED)
    return worker.enforcement.due(slot)


def watch_memory(worker: WorkerProcess) -> None:
    """Have a worker that has grown beyond max_memory replaced after its job."""
    done = worker.slot.read().done
    if done == worker.measured_done:
        return  # it has done nothing since: it cannot have grown much
    worker.measured_done = done
    worker.pool.measure(worker)
    limit = worker.pool.settings.max_memory
    if limit is not None and worker.memory > limit and not worker.stale:
        worker.stale = "over max_memory"
