"""Puts the parts together of a worker that runs several jobs at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.system.slot import Slot
from supervisor.worker.concurrent.loop import ConcurrentLoop
from supervisor.worker.concurrent.run import RunLogs
from supervisor.worker.concurrent.runner import ConcurrentRunner
from supervisor.worker.concurrent.watch import ConcurrentWatch
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness
from supervisor.worker.heartbeat import HeartbeatThread
from supervisor.worker.loader import AnyHandler, Handler
from supervisor.worker.slot_board import SlotBoard
from supervisor.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings


def build(
    pool: PoolSettings,
    slot: Slot,
    handler: AnyHandler,
    executor: Executor,
    exchange: Exchange,
    fitness: Fitness,
    heartbeat: HeartbeatThread,
    watch: ConcurrentWatch,
    *,
    wakeups: Wakeups,
) -> ConcurrentLoop:
    """Called in the main thread, when the handler is loaded. `executor` is changed to judge runs one by one."""
    logs, board = executor.recorder.run_log, executor.board
    assert isinstance(handler, Handler)  # a program is given one job at a time
    assert isinstance(logs, RunLogs)
    assert isinstance(board, SlotBoard)
    runner = ConcurrentRunner(
        pool,
        slot,
        handler,
        executor,
        board,
        logs,
        executor.log,
        executor.mark,
        own_thread=lambda: fitness.leftovers.expect_thread(),
        ended=lambda: loop.wake(),
        reported=heartbeat.progress_reported,
    )
    loop = ConcurrentLoop(
        pool,
        slot,
        exchange,
        runner,
        fitness,
        wakeups=wakeups,
        watched=heartbeat.progress_reported,
        log=executor.log,
        mark=executor.mark,
    )
    watch.runner = runner
    executor.timed_out = runner.timed_out
    return loop
