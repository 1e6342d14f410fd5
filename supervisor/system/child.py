"""Fork a child of ours: no signal lost, no descriptor leaked, a pidfd before it could be reaped."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

from supervisor.system import failpoints, lifeline, signals, standard
from supervisor.system.channel import Channel
from supervisor.system.kernel import die_with_parent, open_descriptors

STANDARD = (0, 1, 2)
_LAST_WORDS = 5.0  # seconds for what a child has said to go over, before it leaves


def fork(run: Callable[[], int], *, role: str, keep: Iterable[int]) -> tuple[int, int]:
    """Fork and run `run` in the child, which ends with its return value as exit code. `role` is what it will be.

    The child starts in a session of its own, so that signals to its process group reach nobody else, and with
    every signal blocked: `run` installs its handlers and unblocks. It holds only the standard descriptors and
    those in `keep`, and dies with this process. Returns (pid, pidfd). Raises OSError, with no child left, where no
    process or no descriptor can be had.
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
        return pid, _open_pidfd(pid)
    finally:
        signals.unblock_all()


def fork_with_channel(run: Callable[[Channel], int], *, role: str, keep: Iterable[int]) -> tuple[Channel, int, int]:
    """As `fork`, for a child that talks to us: `run` gets its end. Returns (our end, pid, pidfd)."""
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


def _open_pidfd(pid: int) -> int:
    """A child that nobody could watch must not live: it would work, unknown to everybody."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _become_child(run: Callable[[], int], kept: set[int], parent: int, role: str) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        close_all_but(kept)
        if role == "worker":  # the others are children of the supervisor, or of a worker, and die with that
            lifeline.arm()
        gc.freeze()  # what is shared with the parent stays shared
        code = run()
    except BaseException:
        # The last resort of a child: say why on stderr, whatever it was, and leave. A handler may have closed that.
        with contextlib.suppress(Exception):
            traceback.print_exc()
    leave(code)


def close_all_but(kept: set[int]) -> None:
    for number in open_descriptors() - kept:
        os.close(number)


def leave(code: int) -> NoReturn:
    """End without the interpreter's teardown, which belongs to the process that was forked."""
    standard.flush()
    os._exit(code)
