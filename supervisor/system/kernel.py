"""The few Linux calls that Python's library lacks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Iterator
from os import fstat  # imported by name: do not use a handler's replacement
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36

_MADV_COLLAPSE = 25  # since Linux 6.1
_HUGE = 2 << 20  # bytes of a huge page
_WORTH = 16 << 20  # bytes: smaller mappings are copied fast enough, and are written to more often
_FULL = 0.95  # minimum resident share of a mapping: the rest would have to be filled

# Errors that say nothing about a process: this one cannot open more files, or the kernel is short of memory.
_NO_MEANS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_EXITING = 0x4  # PF_EXITING, among the flags of /proc/PID/stat

_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends; exit at once if it has ended before this took effect."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that must end its descendants first: it gets SIGCONT instead,
    so that it notices the parent's end even if it was stopped.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def become_subreaper() -> None:
    """Orphaned descendants become our children, so that they can be found, killed and reaped."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def sleep_precisely() -> None:
    """Sleeps of this thread end on time, and not up to 50 microseconds later."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def trim_heap() -> None:
    """Return freed memory that the allocator keeps to the kernel, if it can: glibc's does."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(ctypes.c_size_t(0))


def enlarge_pipe(pipe: int, size: int) -> None:
    """Let a pipe hold this many bytes, so that its writer can continue for a while when nobody reads."""
    with contextlib.suppress(OSError):  # over the user's limit: the default of 64 KiB remains
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


def unread(pipe: int) -> int:
    """How many bytes wait in a pipe, seen from either end."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of the file that a descriptor refers to; None if it is closed."""
    try:
        found = fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_descriptors() -> set[int]:
    """The numbers that are open in this process, without the listing's own, which is closed by then."""
    listed = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers here, not paths
    return {number for number in listed if file_of(number) is not None}


def children(pid: int) -> list[int] | None:
    """The direct children of a process, including zombies; None if they cannot be listed now."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        for task in tasks:
            found += [int(word) for word in _text(task / "children").split()]
    except OSError as error:
        return None if error.errno in _NO_MEANS else found
    return found


def _text(file: Path) -> str:
    """The content of a file in /proc; "" if its process is gone. Raises OSError if it cannot be read now."""
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        if error.errno in _NO_MEANS:
            raise
        return ""


def memory_of(pid: int) -> int:
    """The unique set size in bytes, which ending the process would free; 0 if it is gone or unknown."""
    return _memory(pid)[0]


def _memory(pid: int) -> tuple[int, int]:
    """Bytes that nobody else has, and the same with its part of what is shared."""
    unique = proportional = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in ("Private_Clean", "Private_Dirty"):
                unique += int(rest.split()[0]) * 1024
            elif name == "Pss":
                proportional = int(rest.split()[0]) * 1024
    return unique, proportional


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process, if known."""
    return cpu_and_state(pid).state in ("T", "t")


def memory_of_family(pid: int) -> int:
    """The same for a process and all its descendants: what ending them together would free."""
    return sum(memory_of(member) for member in family(pid))


def memory_shared_with_children(pid: int) -> int:
    """Bytes of a process that has forked others, with what these share with it, without what is theirs alone."""
    (_, own), *others = [_memory(member) for member in family(pid)]
    return own + sum(proportional - unique for unique, proportional in others)


def gather_pages(seconds: float) -> int:
    """Move the large part of our own memory to huge pages, within `seconds`. Returns its size in bytes.

    A fork copies one entry per page and the child's end drops them again. With huge pages there are 512 times fewer, so
    both are as fast for a large model as without one. A page that is written to is copied individually, as before.
    Older kernels do not support this; that costs nothing.
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
    """Where our own large and resident memory is, in whole huge pages."""
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
    for member in family(pid):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE
    return total


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    ahead = [pid]
    while ahead:
        member = ahead.pop()
        yield member
        ahead += children(member) or ()


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since the boot; None if it is gone or a zombie.

    Two processes with the same number never have it in common.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def parent_of(pid: int) -> int:
    """The pid of a process's parent; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third, the state, on; empty if the process is gone.

    A process chooses its own name, which the kernel may cut in the middle of a character.
    """
    with contextlib.suppress(OSError):
        return _read_stat(pid)
    return []


def _read_stat(pid: int) -> list[str]:
    """The same. Raises OSError if it cannot be read now."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


class Activity(NamedTuple):
    """CPU seconds used and the letter of its state: 0 and "" if the process is gone, None if unknown."""

    cpu: float | None
    state: str | None


def cpu_and_state(pid: int) -> Activity:
    """The current activity of a process."""
    try:
        fields = _read_stat(pid)
    except OSError:
        return Activity(None, None)
    if not fields:
        return Activity(0.0, "")
    return Activity((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0])


def is_ending(pid: int) -> bool:
    """Whether a process has been killed, or exits, and is still there: that takes some time. False if unknown."""
    try:
        signals = _text(Path(f"/proc/{pid}/status")).splitlines()
        pending = [int(line.split()[1], 16) for line in signals if line.startswith(("SigPnd:", "ShdPnd:"))]
        fields = _read_stat(pid)
    except OSError:
        return False
    if not fields:
        return False
    killed = any(number >> (signal.SIGKILL - 1) & 1 for number in pending)
    return killed or fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)


def waits_for_disk(pid: int) -> bool:
    """Whether a thread of a process waits for input or output; also if its state is unknown."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return any(_text(task / "stat").rpartition(")")[2].split()[:1] == ["D"] for task in tasks)
    except OSError as error:
        return error.errno in _NO_MEANS


def ancestry(pid: int) -> list[int]:
    """A process and its ancestors, itself first; empty for 0."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        pid = parent_of(pid)
    return found


def command_of(pid: int, longest: int = 120) -> str:
    """The command line of a process, for people: one line of printable characters; empty if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    line = "".join(sign if sign.isprintable() else "?" for sign in words)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def started_at(pid: int) -> float | None:
    """When a process was started, in Unix seconds, accurate to one; None if it does not exist or is a zombie."""
    import psutil  # rarely needed

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
