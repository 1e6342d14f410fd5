"""How a worker runs its claims: one at a time, in batches, or several at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.worker.loop import Parts, Runner
from supervisor.worker.recorder import Recorder

if TYPE_CHECKING:
    from supervisor.config import PoolSettings


def is_concurrent(pool: PoolSettings, *, cautious: bool) -> bool:
    """Whether a worker of this pool runs several jobs at the same time."""
    return pool.concurrency > 1 and not cautious


def runner_of(pool: PoolSettings, *, cautious: bool = False) -> Callable[[Parts], Runner]:
    """The one that the pool's settings ask for. A cautious worker runs one job at a time. Imports only that one: a
    template calls this before it forks, or each of its workers would have to import it.
    """
    if is_concurrent(pool, cautious=cautious):
        from supervisor.worker.runners.concurrent.runner import Concurrent

        return Concurrent
    if pool.batch_size > 1:
        from supervisor.worker.runners.batch import Batches

        return Batches
    from supervisor.worker.runners.one_at_a_time import OneAtATime

    return OneAtATime


def recorder_for(pool: PoolSettings, *, cautious: bool) -> Recorder:
    """What keeps that which the runs of a worker use and print."""
    if not is_concurrent(pool, cautious=cautious):
        return Recorder()
    from supervisor.worker.runners.concurrent.runs import RunLogs

    return Recorder(RunLogs)
