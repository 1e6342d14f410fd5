"""Start children. A fork loses no signal, leaks no descriptor, and has a pidfd before it could be reaped."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from supervisor.system import ending, failpoints, lifeline, signals, standard
from supervisor.system.channel import Channel
from supervisor.system.kernel import die_with_parent, open_descriptors

STANDARD = (0, 1, 2)
_LAST_WORDS = 5.0  # seconds to send what a child has queued, before it exits

_started: dict[int, Program | None] = {}  # our children by pid, until `reap` finds their end; adopted ones are not here


class Program:
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
    kept = {*STANDARD, *keep, *lifeline.inherited()}
    parent = os.getpid()
    standard.flush()
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
        close_all_but(kept)
        if role == "worker":  # the others are children of the supervisor, or of a worker, and die with it
            lifeline.arm()
        gc.freeze()  # so that memory shared with the parent stays shared
        code = run()
    except BaseException:
        # Last resort: write the cause to stderr, whatever it is, and exit. A handler may have closed stderr.
        with contextlib.suppress(Exception):
            traceback.print_exc()
    leave(code)


def close_all_but(kept: set[int]) -> None:
    for number in open_descriptors() - kept:
        os.close(number)


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's teardown, which belongs to the process that was forked."""
    standard.flush()
    os._exit(code)
