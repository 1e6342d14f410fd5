"""The program of a worker: started, spoken to without blocking, and ended together with everything it has started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.text import human_size
from supervisor.system import child, ending, kernel, signals
from supervisor.worker.environment import REPLIES
from supervisor.worker.protocol import Conversation, Message, Violation

CLOSING = 0.5  # seconds from the end of its replies to the program's own end, which gives a better reason
_PIPE_BYTES = 1 << 20
_GULP = 65536
_ABOVE = 10  # numbers below this are kept free for the program's own descriptors
_EXIT_UNSTARTED = 127
TAIL_BYTES = 8192  # kept for job_errors, as for a worker
_STDERR = 2
_SETTLING = 0.1  # seconds to wait for output that has already been printed


class Ended(Exception):
    """The program has ended, and everything that it sent before has been read."""


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
    """One running program, in a session and process group of its own, and the `conversation` with it. Times are
    seconds.

    `output` is the read end of its standard output and error. INTERRUPT is blocked, but while it is waited for.
    """

    def __init__(self, file: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """Start `file` with `command` as its arguments, in `folder`. Raises OSError if that fails."""
        self.conversation = Conversation()
        self._spared = frozenset(kernel.children(os.getpid()) or ())
        stdin, self._requests = os.pipe2(os.O_CLOEXEC)
        self._replies, replies = os.pipe2(os.O_CLOEXEC)
        self.output, output = os.pipe2(os.O_CLOEXEC)
        theirs = (stdin, output, output, replies)
        try:
            # Python warns about a fork when there are other threads; this child only executes the program.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                self.pid, self.pidfd = child.fork(
                    lambda: _execute(file, command, folder, env, theirs), role="program", keep=theirs
                )
        finally:
            for descriptor in set(theirs):
                os.close(descriptor)
        for descriptor in (self._requests, self._replies):
            os.set_blocking(descriptor, False)
        for descriptor in (self._replies, self.output):
            kernel.enlarge_pipe(descriptor, _PIPE_BYTES)
        self._pending = bytearray()  # what the program has not read yet
        self._silent = False  # its replies have ended

    def send(self, line: bytes) -> None:
        """It is written while `next` waits."""
        self._pending += line

    @property
    def untaken(self) -> int:
        """Bytes sent to the program that it has not read; they can be counted even after its death."""
        return len(self._pending) + (kernel.unread(self._requests) if self._requests >= 0 else 0)

    def next(self, until: float = 0.0) -> Message | None:
        """The program's next message; None if it has sent nothing until then. Raises Violation or Ended."""
        while (message := self.conversation.next()) is None:
            left = until - time.monotonic()
            if not self._exchange(max(0.0, left)) and left <= 0:
                return None
        return message

    def part(self, until: float) -> None:
        """Say bye, and wait until then for the program to end."""
        self.send(self.conversation.bye())
        with contextlib.suppress(Violation, Ended):
            while (left := until - time.monotonic()) > 0:
                self._exchange(left)
                if not self._pending:
                    self._close_requests()

    def _exchange(self, seconds: float) -> bool:
        """Wait until the program writes, reads or ends, and do one step of each. Returns whether any was possible.
        Raises Ended if nothing more will come, Violation if the program goes on nevertheless.
        """
        if self._silent:
            if self.wait(CLOSING):
                raise Ended
            raise Violation("closed its replies or its requests, and continued to run")
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        if self._pending and self._requests >= 0:
            poll.register(self._requests, select.POLLOUT)
        # The only place where an interruption may happen: no operation is half done here.
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signals.INTERRUPT})
        try:
            ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._requests in ready:
            try:
                del self._pending[: os.write(self._requests, self._pending[:_GULP])]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._silent = True  # a program that closes its requests has nothing more to say
        dead = self.pidfd in ready
        if dead or self._replies in ready:
            try:
                data = os.read(self._replies, _GULP)
            except BlockingIOError:
                self._silent = dead  # though other processes may hold its replies open
            else:
                self.conversation.hear(data)
                self._silent = self._silent or not data
        return bool(ready)

    def wait(self, seconds: float) -> bool:
        """Whether the program has ended, after waiting at most this long."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def end(self, grace: float) -> Ending:
        """TERM to its group, KILL after `grace`, also to everything it has left behind. Returns how it ended. One that
        cannot be killed, or hangs in the kernel, is not waited for. To be called once.
        """
        # Not reaped yet, so neither its number nor its group's can belong to another process. The group may still
        # live although it has ended.
        send = partial(ending.signal_group, self.pid)  # our own unreaped child
        if grace and not self.wait(0) and send(signal.SIGTERM) is ending.Sent.SENT:
            self.wait(grace)
        refused = send(signal.SIGKILL) is ending.Sent.REFUSED
        self._close_requests()  # if it was refused, nothing else tells it to end
        found = Ending(lives=True)
        if self.wait(0 if refused else ending.KILL_PATIENCE):
            found = self._reap()
        ending.kill_children(spare=self._spared)
        return found

    def _reap(self) -> Ending:
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            return Ending()
        peak = usage.ru_maxrss * 1024
        if os.WIFSIGNALED(status):
            return Ending(signal=signals.name_of(os.WTERMSIG(status)), peak_memory=peak)
        return Ending(exit_code=os.WEXITSTATUS(status), peak_memory=peak)

    def _close_requests(self) -> None:
        """The program reads the end of its input."""
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1

    def close(self) -> None:
        """Close the descriptors; the program must have ended."""
        self._close_requests()
        for descriptor in (self._replies, self.output, self.pidfd):
            os.close(descriptor)


def _execute(file: str, command: Sequence[str], folder: Path, env: Mapping[str, str], ends: Sequence[int]) -> int:
    """In the child: become the program. Its descriptors are 0 to 3 and no others. If that fails, it says why."""
    try:
        copies = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in ends]
        for number, end in zip((0, 1, 2, REPLIES), copies, strict=True):
            os.dup2(end, number)
        os.chdir(folder)
        # Python ignores these two signals; a program that expects the defaults would keep writing to a closed pipe.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signals.unblock_all()
        os.execve(file, list(command), dict(env))  # noqa: S606 - an argument list from our own configuration
    except OSError as error:
        os.write(2, f"{file}: {error.strerror}\n".encode())
    return _EXIT_UNSTARTED


class Output(threading.Thread):
    """Reads continuously, so that a program never blocks on its output.

    Calls `ended` when the program has ended, between jobs, too. Ends with the last writer of the pipe. `keep`
    receives everything that a job prints, from `begin` to `settle`: what comes between two jobs belongs to none, also
    if it is read when the worker already counts the next one as running.
    """

    def __init__(self, pipe: int, pidfd: int, ended: Callable[[], None], keep: Callable[[bytes], None]) -> None:
        super().__init__(name="output", daemon=True)
        self._pipe, self._pidfd = pipe, pidfd
        self._ended, self._keep = ended, keep
        self._lock = threading.Lock()
        self._tail = b""
        self._of_job = False

    def begin(self) -> None:
        """A job starts: what is printed from now on belongs to it."""
        self._turn(of_job=True)
        self._tail = b""

    def settle(self) -> None:
        """A job has ended: what has been printed so far is kept. What comes later is not its."""
        self._turn(of_job=False)

    def tail(self) -> str | None:
        """The end of what the job has printed so far; None if it has printed nothing."""
        self.settle()
        return self._tail.decode("utf-8", "replace") or None

    def _turn(self, *, of_job: bool) -> None:
        """Wait until all is read that has been printed, though not for one that prints without end."""
        deadline = time.monotonic() + _SETTLING
        while True:
            with self._lock:
                if not self.is_alive() or not kernel.unread(self._pipe) or time.monotonic() > deadline:
                    self._of_job = of_job
                    return
            time.sleep(0.0005)

    def run(self) -> None:
        signals.block_all()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        watched = {self._pipe, self._pidfd}
        while watched:
            for descriptor, _ in poll.poll():
                if descriptor == self._pidfd:
                    self._ended()
                elif self._read():
                    continue
                poll.unregister(descriptor)
                watched.discard(descriptor)

    def _read(self) -> bool:
        """False at the end of the pipe."""
        with self._lock:
            data = passed_on = os.read(self._pipe, _GULP)
            if self._of_job:
                self._keep(data)
            self._tail = (self._tail + data)[-TAIL_BYTES:]
        with contextlib.suppress(OSError):  # nobody reads our stderr any more
            while passed_on:
                passed_on = passed_on[os.write(_STDERR, passed_on) :]
        return bool(data)
