"""What ends a worker's sleep. In a process of its own: Wakeups handles the signals of its process."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, signal
from supervisor.system import signals
from supervisor.worker.wakeups import Wakeups

class Requests:
    drains = 0
    def drain(self):
        self.drains += 1

class StandIn:
    requests = Requests()

wake = os.eventfd(0, os.EFD_NONBLOCK)
wakeups = Wakeups(StandIn(), wake, lambda number, frame: None)
print("time", wakeups.sleep(0.01))
os.eventfd_write(wake, 1)
print("post", wakeups.sleep(10))
os.kill(os.getpid(), signals.DRAIN)
print("signal", wakeups.sleep(10), StandIn.requests.drains)
"""


def test_a_post_is_told_from_a_signal_and_from_time() -> None:
    told = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True)

    assert told.stdout.splitlines() == ["time False", "post True", "signal False 1"]


_FLOODED = """
import os, time
from supervisor.worker import wakeups as module

class StandIn:
    pass

def woken(times):
    began, used = time.monotonic(), time.process_time()
    assert all(wakeups.sleep(10) for _ in range(times))
    return time.monotonic() - began, time.process_time() - used

wake = os.eventfd(1_000_000, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
wakeups = module.Wakeups(StandIn(), wake, lambda number, frame: None)
assert woken(module._VAIN)[0] < 10 * module._CALM
took, used = woken(10)
assert took >= 9 * module._CALM > 4 * used, (took, used)
for _ in range(1000):
    wakeups.had_reason()
    assert wakeups.sleep(10)
assert woken(2)[0] < 10 * module._CALM
print("calm")
"""


def test_posts_without_end_do_not_keep_it_awake_unless_there_are_jobs() -> None:
    told = subprocess.run([sys.executable, "-c", _FLOODED], capture_output=True, text=True, timeout=60)

    assert (told.stdout, told.stderr) == ("calm\n", "")
