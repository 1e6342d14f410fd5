"""Ends the PostgreSQL servers of a folder, and removes it, as soon as a process has ended or on SIGTERM.

Run as a program of its own with a pidfd of that process and the folder: it must outlive tests that are killed. It
loads nothing but the standard library, since it is there for as long as the tests are.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE = 10.0  # seconds for an immediate shutdown
_PAUSE = 0.02  # seconds between two looks


def main(owner: int, home: Path) -> None:
    """`owner`: a pidfd."""
    asked, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the tests, which decide what follows
        signal.signal(number, signal.SIG_IGN)
    if child := os.fork():
        (home / "keeper").write_text(str(child))
        os._exit(0)  # whoever has called us waits for this: the folder is kept from now on
    os.chdir("/")
    ends = select.poll()
    for descriptor in (owner, asked):
        ends.register(descriptor, select.POLLIN)
    ends.poll()
    while home.exists():  # workers of killed tests may still start something in it
        end(home)
        shutil.rmtree(home, ignore_errors=True)


def end(home: Path) -> None:
    """End everything that runs in this folder: servers at once, and what does not listen to that, too.

    Only a server takes SIGQUIT as a request: what initdb has started would leave shared memory behind.
    """
    deadline = time.monotonic() + PATIENCE
    while found := running(home):
        late = time.monotonic() > deadline
        for pid, (parent, folder) in found.items():
            number = signal.SIGKILL if late else signal.SIGQUIT if folder.name == "data" else signal.SIGTERM
            if late or parent not in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(_PAUSE)


def running(home: Path) -> dict[int, tuple[int, Path]]:
    """The processes that work in this folder, as every process of a server does: the parent and the folder of each."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            folder = (entry / "cwd").readlink()
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            if folder.is_relative_to(home) and words[0] != "Z":
                found[int(entry.name)] = (int(words[1]), folder)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
