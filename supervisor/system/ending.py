"""Which processes are ours, signals to them, and their end.

They may have ended, or may have become another user's, for example by sudo. Only root can signal such a process. It is
logged once, and not waited for.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from supervisor.system import kernel

KILL_PATIENCE = 5.0  # seconds for killed processes to end
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02
_MOST_NAMED = 1000

_REFUSED = "it belongs to another user now: only that user or root can end it"
_WAITS = "it was killed, and waits for a disk or a network"

_logged: set[tuple[int, int | None, str]] = set()  # pid, start, and why a process cannot be ended


class Sent(Enum):
    """The result of sending a signal."""

    SENT = "sent"
    GONE = "gone"  # the process has ended
    REFUSED = "refused"  # it belongs to another user now


def send_signal(pidfd: int, number: int) -> Sent:
    """Signal exactly the process that the descriptor refers to."""
    return _send(lambda: signal.pidfd_send_signal(pidfd, number), lambda: _pid_of(pidfd))


def signal_child(pid: int, number: int) -> Sent:
    """Signal a child of our own that is not reaped: its number cannot belong to another process."""
    return _send(lambda: os.kill(pid, number), lambda: pid)


def signal_group(pid: int, number: int) -> Sent:
    """The same for the process group that such a child leads, or has led. REFUSED: none of them could be signalled."""
    return _send(lambda: os.killpg(pid, number), lambda: pid)


def _send(send: Callable[[], None], pid: Callable[[], int]) -> Sent:
    try:
        send()
    except ProcessLookupError:
        return Sent.GONE
    except PermissionError:
        if kernel.start_ticks(found := pid()) is not None:  # it has not ended, and is only not reaped yet
            _log_once(found, "signal_refused", _REFUSED)
        return Sent.REFUSED
    return Sent.SENT


def _pid_of(pidfd: int) -> int:
    """0 if unknown."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
        return max(0, next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))
    return 0


def _log_once(pid: int, event: str, hint: str) -> None:
    process = (pid, kernel.start_ticks(pid), hint)
    if process in _logged:
        return
    if len(_logged) >= _MOST_NAMED:
        _logged.clear()
    _logged.add(process)
    with suppress(Exception):  # in a worker, a handler may have changed it in any way
        import structlog  # imported here: rarely needed, and slow to import

        structlog.get_logger(pid=os.getpid()).error(event, process=pid, command=kernel.command_of(pid), hint=hint)


def kill_children(spare: frozenset[int] = frozenset(), patience: float = KILL_PATIENCE) -> int | None:
    """Kill and reap all our children except these, repeatedly until none is left: killing one orphans its own to us.

    Returns how many were killed, None if the children cannot be listed now. Never waits for a process that we may not
    kill. Waits at most `patience` seconds for the killed ones, and not a second time for the same process: it waits
    for a disk or a network, and ends when that responds.
    """
    killed: set[int] = set()
    refused: set[int] = set()
    until = time.monotonic() + patience
    pause = _SHORTEST_PAUSE
    while True:
        found = kernel.children(os.getpid())
        if found is None:
            return None
        targets = [pid for pid in found if pid not in spare and pid not in refused]
        for pid in targets:
            (refused if signal_child(pid, signal.SIGKILL) is Sent.REFUSED else killed).add(pid)
        gone = [_reaped(pid) for pid in targets]
        left = (pid for pid in targets if pid not in refused)
        awaited = [pid for pid in left if (pid, kernel.start_ticks(pid), _WAITS) not in _logged]
        if not awaited:
            return len(killed)
        if time.monotonic() > until:
            for pid in awaited:
                _log_once(pid, "process_does_not_end", _WAITS)
            return len(killed)
        if not any(gone):
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _reaped(pid: int) -> bool:
    """Whether a child of ours has ended; if so, it is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


Processes = Mapping[int, int]  # pid to start_ticks


def signal_all(processes: Processes, number: int) -> None:
    """Signal those that still exist."""
    for pid, started in processes.items():
        with _opened_exactly(pid, started) as pidfd:
            if pidfd is not None:
                send_signal(pidfd, number)


def kill_all(processes: Processes, patience: float) -> Processes:
    """Kill them, and wait until they have ended, for at most this many seconds. Returns those that have not."""
    signal_all(processes, signal.SIGKILL)
    return wait_for_all(processes, patience)


def wait_for_all(processes: Processes, patience: float) -> Processes:
    """Wait until all have ended, for at most this many seconds. Returns those that have not."""
    deadline = time.monotonic() + patience
    left = {}
    for pid, started in processes.items():
        with _opened_exactly(pid, started) as pidfd:
            if pidfd is not None and not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                left[pid] = started
    return left


@contextmanager
def _opened_exactly(pid: int, started: int) -> Iterator[int | None]:
    """A descriptor of exactly this process; None if it has ended, even if its number is in use again."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # After opening: if the number still belongs to that process now, it did when we opened it.
        yield pidfd if kernel.start_ticks(pid) == started else None
    finally:
        os.close(pidfd)


# Which processes belong to a supervisor, when the processes that started them are gone. A template ends what its
# workers' jobs have started. When it is killed together with its supervisor, a program that a job has started in a
# session of its own survives, and is no longer a child of any of our processes. But it has inherited the environment,
# which contains the path of the supervisor's scoreboard; and a process that was only forked has a private mapping of
# that file, as no other process has.

SCOREBOARD_VARIABLE = "JOB_SUPERVISOR"
"""The environment variable in which workers, and what they start, find the path of their supervisor's scoreboard."""

_MAPPED = b"r--p"  # private: processes that read or write a scoreboard map it shared

_mapping: mmap.mmap | None = None


def mark_processes(scoreboard: Path) -> None:
    """From now on, processes that this one starts can be identified as that supervisor's."""
    global _mapping
    os.environ[SCOREBOARD_VARIABLE] = str(scoreboard)
    with suppress(OSError), scoreboard.open("rb") as file:  # may be gone, if the supervisor is gone, too
        _mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def processes_of(scoreboard: str) -> dict[int, int]:
    """The pids of a supervisor's living processes, as far as we may inspect them, and when they were started."""
    variable = b"%b=%b" % (SCOREBOARD_VARIABLE.encode(), os.fsencode(scoreboard))
    mapped = tuple(os.fsencode(scoreboard) + end for end in (b"", b" (deleted)"))
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            started = kernel.start_ticks(int(process.name))
            if started is not None and (_inherited(process, variable) or _mapped(process, mapped)):
                found[int(process.name)] = started
    return found


def _inherited(process: Path, variable: bytes) -> bool:
    return variable in _bytes_of(process / "environ").split(b"\0")


def _mapped(process: Path, endings: tuple[bytes, ...]) -> bool:
    lines = _bytes_of(process / "maps").splitlines()
    return any(line.endswith(endings) and line.split(None, 2)[1] == _MAPPED for line in lines)


def _bytes_of(file: Path) -> bytes:
    """Empty if the process is gone or another user's."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
