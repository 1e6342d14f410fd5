"""Start children. A fork loses no signal, leaks no descriptor, and has a pidfd before it could be reaped.

A worker ends when its supervisor ends, whatever state it and its template are in: the supervisor alone holds the write
end of a pipe, so the pipe ends with it, however it ends. Each worker opens the read end again, because signals are
configured per open file and not per descriptor, and has the kernel kill it at the pipe's end (`fcntl(2)`, F_SETSIG).
That also ends a worker that is stopped, or whose interpreter lock is held by native code.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from supervisor.system import ending, failpoints, signals, standard_streams
from supervisor.system.channel import Channel
from supervisor.system.kernel import die_with_parent, open_descriptors

_F_SETSIG = 10  # Linux; Python's fcntl lacks it

_lifeline_reader = _lifeline_writer = _lifeline_armed = -1


def hold_lifeline() -> None:
    """In the supervisor, before its first fork: from now on its workers live as long as it does. Raises OSError."""
    global _lifeline_reader, _lifeline_writer
    if _lifeline_writer < 0:
        _lifeline_reader, _lifeline_writer = os.pipe2(os.O_CLOEXEC)


def arm_lifeline() -> None:
    """Have the kernel kill this process when the supervisor ends; exit at once if it has already ended.

    Without a supervisor that called `hold_lifeline`, or without /proc, nothing happens.
    """
    global _lifeline_armed
    if _lifeline_reader < 0:
        return
    try:
        _lifeline_armed = os.open(f"/proc/self/fd/{_lifeline_reader}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(_lifeline_armed, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(_lifeline_armed, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(_lifeline_armed, fcntl.F_SETFL, fcntl.fcntl(_lifeline_armed, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return
    # The supervisor may have ended before this took effect.
    poll = select.poll()
    poll.register(_lifeline_armed, select.POLLIN)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(1)


def keep_lifeline_over_exec() -> int:
    """Stay armed in the program that this process becomes, which must not let its own programs inherit the descriptor.
    Returns that, -1 if there is none.
    """
    if _lifeline_armed >= 0:
        os.set_inheritable(_lifeline_armed, True)
    return _lifeline_armed


STANDARD = (0, 1, 2)
_LAST_WORDS = 5.0  # seconds to send what a child has queued, before it exits

_started: dict[int, Subprocess | None] = {}  # our children by pid until `reap` finds their end; no adopted ones


class Subprocess:
    """A program that is run beside other work, for its output. `status` is its exit code, or minus the number of the
    signal that ended it; None until `reap` has found its end. Raises OSError if it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        _started[self._process.pid] = self

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        if self.status is None:  # Popen would reap it
            ending.signal_child(self._process.pid, signal.SIGKILL)

    def ended(self, status: int) -> None:
        """Not for Popen to find out: it takes the end of what another has reaped for success."""
        self._process.returncode = os.waitstatus_to_exitcode(status)

    def output(self) -> bytes:
        """What it wrote, after its end; without waiting for others that have its output open."""
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with self._process.stdout as pipe:
            return pipe.read() or b""


def is_ours(pid: int) -> bool:
    """Whether this child was started here. Others have been adopted: their parent has ended."""
    return pid in _started


def fork(run: Callable[[], int], *, role: str, keep: Iterable[int]) -> tuple[int, int]:
    """Fork and run `run` in the child, which ends with its return value as exit code. `role` is the child's role.

    The child starts in a session of its own, so that signals to its process group reach no other process, and with
    every signal blocked: `run` installs its handlers and unblocks. It keeps only the standard descriptors and
    those in `keep`, and dies with this process. Returns (pid, pidfd). Raises OSError, with no child left, if no
    process or no descriptor is available.
    """
    kept = {*STANDARD, *keep, _lifeline_reader}  # so that the child, or what it forks, can arm that
    parent = os.getpid()
    standard_streams.flush()
    signals.block_all()
    try:
        failpoints.reach(f"fork_{role}.before")
        pid = os.fork()
        if pid == 0:
            failpoints.reach(f"fork_{role}.child")
            failpoints.become(role)
            _become_child(run, kept, parent, role)
        failpoints.reach(f"fork_{role}")
        pidfd = _open_pidfd(pid)
        _started[pid] = None
        return pid, pidfd
    finally:
        signals.unblock_all()


def fork_with_channel(run: Callable[[Channel], int], *, role: str, keep: Iterable[int]) -> tuple[Channel, int, int]:
    """Like `fork`, for a child that sends us messages: `run` gets its end. Returns (our end, pid, pidfd)."""
    ours, theirs = Channel.pair()

    def talk() -> int:
        code = run(theirs)
        theirs.drain(_LAST_WORDS)
        return code

    try:
        pid, pidfd = fork(talk, role=role, keep=(theirs.fileno(), *keep))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, pid, pidfd


def reap() -> Iterator[tuple[int, int, int]]:
    """Reap every child that has ended: its pid, wait status and peak memory in bytes."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        program = _started.pop(pid, None)
        if program is not None:
            program.ended(status)
        yield pid, status, usage.ru_maxrss * 1024


def _open_pidfd(pid: int) -> int:
    """A child that cannot be watched must not live: it would work without supervision."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _become_child(run: Callable[[], int], kept: set[int], parent: int, role: str) -> NoReturn:
    code = 1
    try:
        _started.clear()
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in open_descriptors() - kept:
            os.close(descriptor)
        if role == "worker":  # the others are children of the supervisor, or of a worker, and die with it
            arm_lifeline()
        gc.freeze()  # so that memory shared with the parent stays shared
        code = run()
    except BaseException:
        # Last resort: write the cause to stderr, whatever it is, and exit. A handler may have closed stderr.
        with contextlib.suppress(Exception):
            traceback.print_exc()
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's teardown, which belongs to the process that was forked."""
    standard_streams.flush()
    os._exit(code)
