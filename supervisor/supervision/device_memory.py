"""How much memory of their devices workers use, as `nvidia-smi` tells.

NVIDIA's library is not loaded here: whoever has its device files open cannot be forked. The program runs beside the
supervisor, which takes its answer at a later tick.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable

from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.telemetry import events

_PROGRAM = "nvidia-smi"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_EVERY = 10.0  # seconds between two looks at devices with busy workers
_PATIENCE = 20.0  # seconds for an answer
_MIB = 1 << 20


class DeviceMeter:
    """Runs the program only while a device with a budget is used. `broken`: it cannot be run."""

    def __init__(self) -> None:
        self.broken = False
        self._running: subprocess.Popen[bytes] | None = None
        self._again = False
        self._asked_at = -_EVERY
        self._asked_for: set[str] = set()  # incarnations of workers that had been set up

    def look(self, devices: Collection[str]) -> None:
        """Measure soon, if there is anything to measure."""
        self._again = self._again or bool(devices)

    def repeat(self, workers: Iterable[WorkerProcess], now: float, *, busy: bool) -> None:
        """Start the program if it is time to, for these workers; `busy`: some may have grown."""
        if self._running is not None and now - self._asked_at > _PATIENCE:
            self._running.kill()
        due = self._again or (busy and now - self._asked_at >= _EVERY)
        if due and self._running is None and not self.broken:
            self._again, self._asked_at = False, now
            self._asked_for = {worker.incarnation for worker in workers if worker.is_ready}
            self._start()

    def take(self, workers: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Note the answer, if it has come, in the workers for which it was asked, and return these."""
        process = self._running
        if process is None or process.poll() is None:  # whoever reaps it first, its end is seen
            return []
        assert process.stdout is not None
        with process.stdout as pipe:
            answer = pipe.read() or b""
        self._running = None
        used = parsed(answer)
        ready = [worker for worker in workers if worker.incarnation in self._asked_for and worker.device is not None]
        for worker in ready:
            worker.memory.on_device = sum(used.get(member, 0) for member in kernel.family(worker.pid))
        if ready and not any(worker.memory.on_device for worker in ready):
            self._give_up("it names none of the workers")
        return ready

    def _start(self) -> None:
        program = shutil.which(_PROGRAM)
        if program is None:
            self._give_up("it is not installed")
            return
        try:
            self._running = subprocess.Popen(
                (program, *_QUERY), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self._give_up(os.strerror(error.errno or 0))
            return
        assert self._running.stdout is not None
        os.set_blocking(self._running.stdout.fileno(), False)

    def _give_up(self, why: str) -> None:
        self.broken = True
        hint = "the budgets of [devices] are not kept; in a container, it may not see the processes"
        events(process="supervisor").warning("devices_unmeasured", program=_PROGRAM, problem=why, hint=hint)


def parsed(answer: bytes) -> dict[int, int]:
    """Bytes by process. Lines that give no number, like `[N/A]`, are left out."""
    found: dict[int, int] = {}
    for line in answer.decode("utf-8", "replace").splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal():
            found[int(pid)] = found.get(int(pid), 0) + int(used) * _MIB
    return found
