"""The workers of one pool, and what they are counted as."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.devices import assign
from supervisor.domain.staffing import Counts
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import State


def is_idle(worker: WorkerProcess) -> bool:
    """Whether it has no job, or is still being set up."""
    return worker.slot.read().state in (State.IDLE, State.STARTING)


class PoolWorkers(dict[str, WorkerProcess]):
    """By incarnation, from the request of each to the report of its end."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, str] = {}  # the latest device of each name

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.values() if worker.living]

    def staying(self) -> list[WorkerProcess]:
        """The workers that are neither leaving nor to be replaced."""
        return [worker for worker in self.living() if not worker.leaving and not worker.stale]

    def stale(self) -> list[WorkerProcess]:
        """The workers that are to be replaced and have not been asked to leave."""
        return [worker for worker in self.living() if worker.stale and not worker.leaving]

    def old_serve(self) -> bool:
        """Whether workers with the code from before a reload are ready."""
        return any(worker.is_ready and worker.template.superseded for worker in self.living())

    def counts(self, target: int) -> Counts:
        living, staying = self.living(), self.staying()
        return Counts(
            target=target,
            staying=len(staying),
            starting=sum(not worker.is_ready for worker in staying),
            idle=sum(map(is_idle, staying)),
            stale=len(self.stale()),
            leaving=sum(worker.leaving for worker in living),
            unexplained=len(self) - len(living),
        )

    def next_name(self, pool: str) -> str:
        taken = {worker.name for worker in self.values()}
        number = 1
        while f"{pool}-{number}" in taken:
            number += 1
        return f"{pool}-{number}"

    def next_device(self, name: str, gpus: Sequence[str], target: int) -> str | None:
        """The device for a new worker: that of the stale worker it replaces, else the least used one."""
        staying, stale = self.staying(), self.stale()
        beyond = len(staying) + len(stale) - target
        left = stale[max(0, beyond) :]  # the first ones already have successors
        device = left[0].device if left and beyond >= 0 else None
        if device not in gpus:
            device = assign(gpus, [worker.device for worker in [*staying, *left]], [self._devices.get(name)])
        if device is not None:
            self._devices[name] = device
        return device
