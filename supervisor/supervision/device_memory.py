"""How much memory of their devices workers use, as `nvidia-smi` tells.

NVIDIA's library is not loaded here: whoever has its device files open cannot be forked. The program runs beside the
supervisor, which takes its answer at a later tick.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable

from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.child import Program
from supervisor.telemetry import events

_PROGRAM = "nvidia-smi"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_LINE = re.compile(rb"^\s*(\d{1,12})\s*,\s*(\d{1,12})\s*$", re.MULTILINE)  # pid, MiB
_EVERY = 10.0  # seconds between two looks at devices with busy workers
_PATIENCE = 20.0  # seconds for an answer


class DeviceMeter:
    """Runs the program only while a device with a budget is used. `broken`: it gives no answer, or one that cannot be
    right. It is tried again, as often as one that works.
    """

    def __init__(self) -> None:
        self.broken = False
        self._running: Program | None = None
        self._again = False
        self._asked_at = -_EVERY
        self._asked_for: set[str] = set()  # incarnations of workers that had been set up

    def look(self, devices: Collection[str]) -> None:
        """Measure soon, if there is anything to measure."""
        self._again = self._again or bool(devices)

    def repeat(self, workers: Iterable[WorkerProcess], now: float, *, busy: bool) -> None:
        """Start the program if it is time to, for these workers; `busy`: some may have grown."""
        if self._running is not None and now - self._asked_at > _PATIENCE:
            self._running.kill()  # one that hangs in a driver does not end by that
            self._give_up(f"it gave no answer within {_PATIENCE:g} s")
        due = self._again or (busy and now - self._asked_at >= _EVERY)
        if due and self._running is None:
            self._again, self._asked_at = False, now
            self._asked_for = {worker.request.incarnation for worker in workers if worker.is_ready}
            try:
                self._running = Program((shutil.which(_PROGRAM) or _PROGRAM, *_QUERY))
            except OSError as error:
                self._give_up(f"it cannot be started: {error.strerror}")

    def take(self, workers: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Note the answer, if it has come, in the workers for which it was asked, and return these."""
        program = self._running
        if program is None or program.status is None:
            return []
        self._running = None
        answer = program.output()
        if program.status != 0:  # part of an answer is none: who is missing there may use the device
            self._give_up(f"it ended with {program.status}")
            return []
        used = Counter[int]()
        for pid, size in _LINE.findall(answer):  # others give no number, like `[N/A]`
            used[int(pid)] += int(size) << 20
        measured = [one for one in workers if one.request.incarnation in self._asked_for and _is_whole(one)]
        for worker in measured:
            worker.memory.on_device = sum(used[member] for member in kernel.family(worker.process.pid))
        if any(worker.memory.on_device for worker in measured):
            self.broken = False
        elif any(worker.slot.read().done for worker in measured):  # before its first job, a model may not be loaded
            self._give_up("it names none of the workers")
        return measured

    def _give_up(self, why: str) -> None:
        if not self.broken:
            self.broken = True
            hint = "the budgets of [devices] are not kept; in a container, it may not see the processes"
            events(process="supervisor").warning("devices_unmeasured", program=_PROGRAM, problem=why, hint=hint)


def _is_whole(worker: WorkerProcess) -> bool:
    """Whether it uses nothing if it is missing in an answer: a process that is ending frees its memory before it frees
    what it has on a device.
    """
    return worker.request.device is not None and kernel.resident_of_family(worker.process.pid) > 0
