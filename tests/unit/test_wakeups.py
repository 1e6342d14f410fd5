"""What ends a worker's sleep. In a process of its own: Wakeups handles the signals of its process."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, signal
from supervisor.system import signals
from supervisor.system.slot import SLOT_BYTES, Slot
from supervisor.worker.wakeups import Wakeups

slot = Slot(memoryview(bytearray(SLOT_BYTES)))
wake = os.eventfd(0, os.EFD_NONBLOCK)
wakeups = Wakeups(slot, wake, lambda number, frame: None)
print("time", wakeups.sleep(0.01))
os.eventfd_write(wake, 1)
print("post", wakeups.sleep(10))
os.kill(os.getpid(), signals.DRAIN)
print("signal", wakeups.sleep(10), slot.page.drain)
"""


def test_a_post_is_told_from_a_signal_and_from_time() -> None:
    told = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True)

    assert told.stdout.splitlines() == ["time False", "post True", "signal False 1"]
