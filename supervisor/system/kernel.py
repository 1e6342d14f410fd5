"""The few Linux calls that Python's library lacks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_MADV_COLLAPSE = 25  # since Linux 6.1
_HUGE = 2 << 20  # bytes of a huge page
_WORTH = 16 << 20  # bytes: smaller mappings are copied fast enough, and written to more
_FULL = 0.95  # of a mapping that is there: what is not would have to be filled

KILL_PATIENCE = 5.0  # seconds for killed processes to be gone
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02

_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends; leave at once if it has ended before this took effect."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that has descendants of its own to end first: it gets SIGCONT instead,
    so that it sees the parent's end for itself even if it has been stopped.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def become_subreaper() -> None:
    """Orphaned descendants become our children, so that they can be found, killed and reaped."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trim_heap() -> None:
    """Give the kernel back what the allocator keeps of freed memory, where it can: glibc's does."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(ctypes.c_size_t(0))


def send_signal(pidfd: int, number: int) -> bool:
    """Signal the very process that the descriptor stands for. False if it has ended."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def file_ids() -> tuple[int, int]:
    """The user and the group as whom this process meets files; setting them to -1 changes nothing and tells."""
    return _libc.setfsuid(-1), _libc.setfsgid(-1)


def set_file_ids(user: int, group: int) -> None:
    """Raises OSError where that is not allowed: the calls themselves do not say."""
    _libc.setfsuid(user)
    _libc.setfsgid(group)
    if file_ids() != (user, group):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def open_descriptors() -> set[int]:
    """The numbers that are open in this process, without that of the listing itself, which is closed by then."""
    listed = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers here, no paths
    return {number for number in listed if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies included."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for task in tasks:
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text(errors="replace").split()]
    return found


def kill_children(spare: frozenset[int] = frozenset(), patience: float = KILL_PATIENCE) -> int:
    """Kill and reap our children but these, again until none is left: killing one orphans its own to us.

    Returns how many were killed. Never waits for a process that is not killed yet, and for `patience` seconds at
    most for those that are: one that waits for a disk or a network ends when that answers.
    """
    killed: set[int] = set()
    until = time.monotonic() + patience
    pause = _SHORTEST_PAUSE
    while True:
        targets = [pid for pid in children(os.getpid()) if pid not in spare]
        if not targets or time.monotonic() > until:
            return len(killed)
        for pid in targets:
            # Our own unreaped children: their numbers cannot belong to a stranger.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        gone = [_reaped(pid) for pid in targets]
        if not any(gone):
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _reaped(pid: int) -> bool:
    """Whether a child of ours has ended, and is gone now."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def memory_of(pid: int) -> int:
    """The unique set size in bytes, what ending the process would free; 0 for a process that is gone."""
    unique = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in ("Private_Clean", "Private_Dirty"):
                unique += int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        return 0
    return unique


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return cpu_and_state(pid)[1] in ("T", "t")


def memory_of_family(pid: int) -> int:
    """The same for a process and all its descendants: what ending them together would free."""
    return sum(memory_of(member) for member in _family(pid))


def gather_pages(seconds: float) -> int:
    """Have the large part of our own memory in huge pages, for as long as `seconds` allow. Returns the bytes of it.

    A fork copies an entry a page and the child's end drops them again: with huge pages a 512th as many, so that
    both take no longer for a large model than for none. A page that is written to is copied by itself as before.
    Older kernels refuse; that costs nothing.
    """
    until = time.monotonic() + seconds
    gathered = 0
    for start, end in _large_mappings():
        for at in range(start, end, _WORTH):
            length = min(_WORTH, end - at)
            if time.monotonic() > until or _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(length), _MADV_COLLAPSE):
                return gathered
            gathered += length
    return gathered


def _large_mappings() -> list[tuple[int, int]]:
    """Where our own large and filled memory lies, in whole huge pages."""
    found: list[tuple[int, int]] = []
    start = end = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
            name, *rest = line.split()
            if not name.endswith(":"):
                first, _, last = name.partition("-")
                start, end = int(first, 16), int(last, 16)
                if rest[0] != "rw-p" or rest[3] != "0":  # of a file, or shared
                    end = start
            elif name == "Rss:" and end - start >= _WORTH and int(rest[0]) * 1024 >= _FULL * (end - start):
                found.append((-(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE))
    return found


def resident_of_family(pid: int) -> int:
    """The resident set size in bytes of a process and all its descendants: quick to read, and never too small."""
    total = 0
    for member in _family(pid):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE
    return total


def _family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    ahead = [pid]
    while ahead:
        member = ahead.pop()
        yield member
        ahead += children(member)


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since the boot; None if it is gone or a zombie.

    No two processes with the same number have it in common.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def parent_of(pid: int) -> int:
    """The pid of a process's parent; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third, the state, on; none if the process is gone.

    A process chooses its own name, which the kernel may cut in the middle of a character.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def cpu_and_state(pid: int) -> tuple[float, str]:
    """(CPU seconds used, state letter) of a process; (0, "") if it is gone."""
    fields = _stat(pid)
    if not fields:
        return 0.0, ""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]


def ancestry(pid: int) -> list[int]:
    """A process and its ancestors, itself first; empty for 0."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def command_of(pid: int, longest: int = 120) -> str:
    """What a process was started with, for people: one line of printable characters; empty if nobody may know."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    line = "".join(sign if sign.isprintable() else "?" for sign in words)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def started_at(pid: int) -> float | None:
    """When a process was started, in Unix seconds to within one; None if there is none, or only what is left of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return None if fields[0] in ("Z", "X") else booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
