"""How much memory of their devices workers use, as `nvidia-smi` tells.

NVIDIA's library is not loaded here: whoever has its device files open cannot be forked. The program runs beside the
supervisor, which takes its answer at a later tick.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable

from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel, signals
from supervisor.system.child import Program
from supervisor.telemetry import events

_PROGRAM = "nvidia-smi"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_EVERY = 10.0  # seconds between two looks at devices with busy workers
_PATIENCE = 20.0  # seconds for an answer
_MIB = 1 << 20
_DIGITS = 12  # of a number that can be right


class DeviceMeter:
    """Runs the program only while a device with a budget is used. `broken`: it gives no answer, or one that cannot be
    right. It is tried again, as often as one that works.
    """

    def __init__(self) -> None:
        self.broken = False
        self._running: Program | None = None
        self._again = False
        self._has_failed = False
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
            self._start()

    def take(self, workers: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Note the answer, if it has come, in the workers for which it was asked, and return these."""
        program = self._running
        if program is None or program.status is None:
            return []
        self._running = None
        answer = program.output()
        if program.status != 0:
            self._failed(program.status)
            return []
        self._has_failed = False
        measured = [worker for worker in workers if worker.request.incarnation in self._asked_for and _is_told(worker)]
        used = parsed(answer)
        for worker in measured:
            worker.memory.on_device = sum(used.get(member, 0) for member in kernel.family(worker.process.pid))
        if any(worker.memory.on_device for worker in measured):
            self.broken = False
        elif any(worker.slot.read().done for worker in measured):  # before its first job, a model may not be loaded
            self._give_up("it names none of the workers")
        return measured

    def _start(self) -> None:
        program = shutil.which(_PROGRAM)
        if program is None:
            self._give_up("it is not installed")
            return
        try:
            self._running = Program((program, *_QUERY))
        except OSError as error:
            self._give_up(os.strerror(error.errno or 0))

    def _failed(self, status: int) -> None:
        """Part of an answer is none: who is missing there may use the device. It is tried once more at once."""
        if self._has_failed:
            ended = f"was ended by {signals.name_of(-status)}" if status < 0 else f"ended with exit code {status}"
            self._give_up(f"it {ended}")
        else:
            self._has_failed = self._again = True

    def _give_up(self, why: str) -> None:
        if self.broken:
            return
        self.broken = True
        hint = "the budgets of [devices] are not kept; in a container, it may not see the processes"
        events(process="supervisor").warning("devices_unmeasured", program=_PROGRAM, problem=why, hint=hint)


def _is_told(worker: WorkerProcess) -> bool:
    """Whether the absence of a worker from an answer that was asked for when it was ready means that it uses nothing.

    A process that is ending frees its memory before it frees what it has on a device.
    """
    return worker.request.device is not None and kernel.resident_of_family(worker.process.pid) > 0


def parsed(answer: bytes) -> dict[int, int]:
    """Bytes by process. Lines that give no number, like `[N/A]`, are left out."""
    found: dict[int, int] = {}
    for line in answer.decode("utf-8", "replace").splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal() and max(len(pid), len(used)) <= _DIGITS:
            found[int(pid)] = found.get(int(pid), 0) + int(used) * _MIB
    return found
