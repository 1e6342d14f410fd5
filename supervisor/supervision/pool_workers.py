"""The workers of one pool, and what they are counted as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from supervisor.domain.scaling import Counts, assign
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import State

_TOGETHER = 1.0  # seconds between two requests in which both workers count as requested at the same time


def is_idle(worker: WorkerProcess) -> bool:
    """Whether it has no job, because none is due, because it is a spare, or because it is still being set up."""
    return worker.slot.read().state in (State.IDLE, State.STARTING, State.SPARE)


def _comes_first(one: WorkerProcess, ready: WorkerProcess, used: Mapping[str | None, int]) -> bool:
    """Whether a worker that is not ready yet, and was requested together with one that is, has a less used device."""
    together = one.asked_at < ready.asked_at + _TOGETHER
    return together and not one.is_ready and used[one.device] < used[ready.device]


def _besides(spares: int, workers: Sequence[WorkerProcess]) -> int:
    waiting = sum(not (worker.serving or worker.leaving) for worker in workers)
    return len(workers) - min(spares, waiting)


def _may_run(worker: WorkerProcess) -> bool:
    """Whether a job may run in it, or a process that one has left behind. In its teardown it runs none."""
    if not worker.living:
        return not worker.swept
    slot = worker.slot.read()
    return not (slot.ceased_at and slot.alone)


class PoolWorkers(dict[str, WorkerProcess]):
    """By incarnation, from the request of each to the report of its end."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, str] = {}  # the latest device of each name
        self.unswept: dict[str, TemplateProcess] = {}  # removed ones that may have left processes behind

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.values() if worker.living]

    def staying(self) -> list[WorkerProcess]:
        """The workers that are neither leaving nor to be replaced."""
        return [worker for worker in self.living() if not worker.leaving and not worker.stale]

    def stale(self) -> list[WorkerProcess]:
        """The workers that are to be replaced and have not been asked to leave. First those that are still being set
        up, which may never be ready; then spares: nobody has to wait for them.
        """
        found = [worker for worker in self.living() if worker.stale and not worker.leaving]
        return sorted(found, key=lambda worker: (worker.is_ready, worker.serving))

    # Places: in a pool with spares, no more workers than its target may run jobs

    def _taken(self) -> int:
        """How many may run jobs, or may have left processes behind that still run."""
        return len(self.unswept) + sum(one.serving and _may_run(one) for one in self.values())

    def working(self, spares: int) -> int:
        """How many there are besides so many spares, or more if more are ready, as during a reload."""
        return min(_besides(spares, self.living()), len(self.living()) - self.spare())

    def remaining(self, spares: int) -> int:
        """How many there are besides so many spares and those that are leaving."""
        return _besides(spares, [worker for worker in self.living() if not worker.leaving])

    def spare(self) -> int:
        """How many could take over a place now."""
        return sum(worker.is_ready and not worker.serving for worker in self.living())

    def next_to_serve(self, target: int) -> WorkerProcess | None:
        """The spare that takes over a free place now: rather not one that is to be replaced, and one whose device the
        fewest others use.
        """
        if self._taken() >= target:
            return None
        used = Counter(worker.device for worker in self.living() if worker.serving)
        waiting = [worker for worker in self.living() if not (worker.serving or worker.leaving)]
        ready = [worker for worker in waiting if worker.is_ready]
        best = min(ready, key=lambda one: (bool(one.stale), used[one.device], one.asked_at), default=None)
        if best is None or any(_comes_first(one, best, used) for one in waiting):
            return None
        return best

    def candidates(self, target: int) -> list[WorkerProcess]:
        """Those of which surplus ones leave: the ones that run jobs, if too many do, else spares before others."""
        serving = [worker for worker in self.staying() if worker.serving]
        return serving if len(serving) > target else [one for one in self.staying() if not one.serving] or serving

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
