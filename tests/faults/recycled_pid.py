"""A stranger gets the pid of a dead worker whose end its supervisor has not noticed yet.

Run in a pid namespace of its own, where the next pid can be chosen and everything ends with this process:
`unshare --pid --fork --mount-proc python -m tests.faults.recycled_pid FOLDER`. Prints what the stranger heard.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.site_under_test import kill, site, wait_for

STRANGER = """
import os, signal, sys, time
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, heard)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def stranger_with(pid: int) -> subprocess.Popen[str]:
    """A process with this very pid, which must be free; others may be forked meanwhile, so try again."""
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True)
        if process.pid == pid:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process
        process.kill()
        process.communicate()
    raise AssertionError(f"nobody got the pid {pid}")


def main(folder: str) -> None:
    with site(Path(folder), '[pools.once]\nhandler = "jobs:once"\nworkers = 1\n') as place:
        supervisor = place.start()
        job = place.queue.enqueue("once")
        worker = place.running_pid(job)
        supervisor.send_signal(signal.SIGSTOP)
        kill(worker)
        wait_for(lambda: not psutil.pid_exists(worker), "the template to reap it")
        stranger = stranger_with(worker)
        # The first thing that it does now is to tell its workers to leave.
        supervisor.send_signal(signal.SIGTERM)
        supervisor.send_signal(signal.SIGCONT)
        assert supervisor.wait(20) == 0
        place.verdict(hit=[job], pending=[job])
        assert stranger.poll() is None, "the stranger was killed"
        stranger.kill()
        sys.stdout.write(f"heard: {stranger.communicate()[0].split()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
