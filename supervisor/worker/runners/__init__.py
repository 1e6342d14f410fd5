"""How a worker runs its claims: one at a time, in batches, or several at the same time."""

from __future__ import annotations

from supervisor.worker.loop import Runner
from supervisor.worker.parts import Parts


def runner_for(parts: Parts) -> Runner:
    """The one that the pool's settings ask for. A cautious worker runs one job at a time. Imports only that one."""
    if parts.pool.concurrency > 1 and not parts.cautious:
        from supervisor.worker.runners.concurrent.runner import Concurrent

        return Concurrent(parts)
    if parts.pool.batch_size > 1:
        from supervisor.worker.runners.batch import Batches

        return Batches(parts)
    from supervisor.worker.runners.one import OneAtATime

    return OneAtATime(parts)
