"""What a worker is given, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from supervisor.store.base import Engine, WorkerRecord
from supervisor.system.claim_gate import ClaimGate
from supervisor.system.counters import Row
from supervisor.system.slot import Slot
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness
from supervisor.worker.heartbeat import Heartbeat
from supervisor.worker.recorder import Recorder
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

    @property
    def concurrent(self) -> bool:
        """Whether it runs several jobs at the same time."""
        return self.pool.concurrency > 1 and not self.cautious


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
