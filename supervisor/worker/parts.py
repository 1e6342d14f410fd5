"""What a worker is given, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain import middleware
from supervisor.store.base import Engine, WorkerRecord
from supervisor.system.counters import Row
from supervisor.system.scoreboard import ClaimGate
from supervisor.system.slot import Slot
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness
from supervisor.worker.handler import AnyHandler, Handler
from supervisor.worker.heartbeat import Heartbeat
from supervisor.worker.middleware import WorkerMiddleware
from supervisor.worker.recorder import Recorder, SlotBoard
from supervisor.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings


class Assignment(NamedTuple):
    """What one worker is and should do, and where it shows it.

    `wake` is the pool's eventfd, on which it sleeps; `news` is the supervisor's, by which it announces that its slot
    has changed. It claims while the `gate` is open. `recorder` keeps what runs use and print, `row` counts them.
    A `cautious` one claims one job at a time, checks its process and commits before the next, so that a death shows
    which job caused it. An `unproven` one has code of which no worker has been ready yet. Without `keep_done`, jobs may
    be deleted when they have succeeded. `on_beat` is called with every heartbeat, by another thread.
    """

    pool: PoolSettings
    record: WorkerRecord
    engine: Engine
    slot: Slot
    wake: int
    news: int
    gate: ClaimGate
    recorder: Recorder
    row: Row
    device: str | None = None
    cautious: bool = False
    unproven: bool = False
    keep_done: bool = True
    on_beat: Callable[[], None] = lambda: None


def is_concurrent(pool: PoolSettings, *, cautious: bool) -> bool:
    """Whether a worker of this pool runs several jobs at the same time."""
    return pool.concurrency > 1 and not cautious


class Parts(NamedTuple):
    """What the loop and the runner of a worker need from the rest of it."""

    pool: PoolSettings
    slot: Slot
    exchange: Exchange
    executor: Executor
    fitness: Fitness
    heartbeat: Heartbeat
    wakeups: Wakeups
    cautious: bool


def executor_of(assignment: Assignment, handler: AnyHandler, log: Any) -> Executor:
    """Raises HandlerError if the handler cannot do what the pool needs, and MiddlewareError."""
    pool, recorder = assignment.pool, assignment.recorder
    if isinstance(handler, Handler):
        if pool.batch_size > 1:
            handler.insist_on_batches()
        handler.insist_on(pool.types)
    loaded = middleware.load([*pool.middleware, *getattr(handler, "middleware", ())])
    info = middleware.WorkerInfo(pool.name, assignment.record.name, log)
    return Executor(
        handler,
        SlotBoard(assignment.slot, recorder, assignment.engine),
        pool.policy,
        capabilities=pool.capabilities,
        options=pool.options,
        device=assignment.device,
        timeout=pool.timeout_of,
        recorder=recorder,
        middleware=WorkerMiddleware(loaded, info) if loaded else None,
        log=log,
        clock=assignment.gate.clock,
    )
