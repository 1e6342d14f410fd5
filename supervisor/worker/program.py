"""The program of a worker as a process: started, monitored, and ended together with everything it has started."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.text import human_size
from supervisor.system import child, ending, kernel, signals
from supervisor.worker.environment import REPLIES

_PIPE_BYTES = 1 << 20
_ABOVE = 10  # numbers below this are kept free for the program's own descriptors
_EXIT_UNSTARTED = 127


class Ending(NamedTuple):
    """How the program ended; `peak_memory` is bytes. Without exit code and signal, it is unknown."""

    exit_code: int | None = None
    signal: str | None = None
    peak_memory: int | None = None
    out_of_memory: bool = False  # the kernel killed it for lack of memory
    lives: bool = False  # it could not be killed

    def __str__(self) -> str:
        if self.lives:
            return "could not be killed"
        if self.out_of_memory:
            return "was killed by the kernel because it was out of memory"
        if self.signal is not None:
            return f"was killed by {self.signal}"
        return "ended" if self.exit_code is None else f"ended with exit code {self.exit_code}"

    @property
    def hint(self) -> str:
        """An explanation, if the program ended without our doing."""
        if self.out_of_memory:
            return f"; it had used {human_size(self.peak_memory)} at its peak" if self.peak_memory else ""
        return "; if nobody did that, the kernel may have been out of memory" if self.signal == "SIGKILL" else ""


class Program:
    """One running program, in a session and process group of its own. Times are seconds.

    `requests` is the write end of its standard input, `replies` the read end of its replies, both
    non-blocking; `output` is the read end of its standard output and error.
    """

    def __init__(self, file: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """Start `file` with `command` as its arguments, in `folder`. Raises OSError if that fails."""
        self._spared = frozenset(kernel.children(os.getpid()) or ())
        stdin, self.requests = os.pipe2(os.O_CLOEXEC)
        self.replies, replies = os.pipe2(os.O_CLOEXEC)
        self.output, output = os.pipe2(os.O_CLOEXEC)
        trouble, trouble_end = os.pipe2(os.O_CLOEXEC)
        theirs = (stdin, output, replies, trouble_end)

        def become() -> int:
            return _execute(file, command, folder, env, *theirs)

        try:
            # Python warns about a fork when there are other threads; this child only executes the program.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                self.pid, self.pidfd = child.fork(become, role="program", keep=theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        for descriptor in (self.requests, self.replies):
            os.set_blocking(descriptor, False)
        for descriptor in (self.replies, self.output):
            kernel.enlarge_pipe(descriptor, _PIPE_BYTES)
        self._ending: Ending | None = None
        with os.fdopen(trouble, "rb") as said:  # the exec closes the other end
            errno = said.read()
        if errno:
            self.end(grace=0)
            self.close()
            raise OSError(int(errno), os.strerror(int(errno)))

    def wait(self, seconds: float) -> bool:
        """Whether the program has ended, after waiting at most this long."""
        if self._ending is not None:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def end(self, grace: float) -> Ending:
        """TERM to its group, KILL after `grace`, also to everything it has left behind. Returns how it ended."""
        if self._ending is None:
            if grace and not self.wait(0) and self._signal(signal.SIGTERM) is ending.Sent.SENT:
                self.wait(grace)
            # It is not reaped yet, so neither its number nor its group's can belong to another process. This is
            # needed even if it has ended: its group may still live.
            refused = self._signal(signal.SIGKILL) is ending.Sent.REFUSED
            if refused:
                self.close_requests()  # nothing else may tell it to end
            self._ending = self._reap(0 if refused else ending.KILL_PATIENCE)
            ending.kill_children(spare=self._spared)
        return self._ending

    def _signal(self, number: int) -> ending.Sent:
        return ending.signal_group(self.pid, number)  # our own unreaped child

    def _reap(self, patience: float) -> Ending:
        """A program that cannot be killed, or hangs in the kernel, is not waited for; how it ends stays unknown."""
        if not self.wait(patience):
            return Ending(lives=True)
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            return Ending()
        if os.WIFSIGNALED(status):
            return Ending(signal=signals.name_of(os.WTERMSIG(status)), peak_memory=usage.ru_maxrss * 1024)
        return Ending(exit_code=os.WEXITSTATUS(status), peak_memory=usage.ru_maxrss * 1024)

    def untaken(self) -> int:
        """How many bytes of its requests the program has not read; they can be counted even after its death."""
        return kernel.unread(self.requests) if self.requests >= 0 else 0

    def close_requests(self) -> None:
        """The program reads the end of its input."""
        if self.requests >= 0:
            os.close(self.requests)
            self.requests = -1

    def close(self) -> None:
        """Close the descriptors; the program must have ended."""
        self.close_requests()
        for descriptor in (self.replies, self.output, self.pidfd):
            os.close(descriptor)


def _execute(
    file: str,
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    stdin: int,
    output: int,
    replies: int,
    trouble: int,
) -> int:
    """In the child: become the program. Its descriptors are 0 to 3 and no others."""
    trouble = fcntl.fcntl(trouble, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    try:
        os.chdir(folder)
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in (stdin, output, output, replies)]
        for number, end in zip((0, 1, 2, REPLIES), ends, strict=True):
            os.dup2(end, number)
        # Python ignores these two signals; a program that expects the defaults would keep writing to a closed pipe.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signals.unblock_all()
        os.execve(file, list(command), dict(env))  # noqa: S606 - an argument list from our own configuration
    except OSError as error:
        os.write(trouble, str(error.errno or 0).encode())
    return _EXIT_UNSTARTED
