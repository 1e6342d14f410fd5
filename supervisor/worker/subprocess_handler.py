"""A handler that is a program: it receives jobs as lines and answers with progress, results and errors.

A worker has one program for its whole life. When the program ends, or must be killed, the worker exits
after it has settled what it holds, and the pool replaces both; so no program is restarted here.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor.config.machine import executable
from supervisor.config.settings import PoolSettings
from supervisor.domain.errors import InvalidJob, StoreError
from supervisor.domain.process_health import KILL_GRACE
from supervisor.domain.settlement import Failure
from supervisor.domain.text import human
from supervisor.system import signals
from supervisor.system.resources import OomCounter
from supervisor.telemetry import events
from supervisor.worker import environment
from supervisor.worker.context import BatchContext, Context, JobInterrupted
from supervisor.worker.handler import HandlerError
from supervisor.worker.outcomes import Crashed, NotBegun, Reported
from supervisor.worker.output import Output
from supervisor.worker.program import Ending, Program
from supervisor.worker.program_link import CLOSING, Ended, ProgramLink
from supervisor.worker.protocol import (
    Answer,
    Emit,
    Error,
    Extend,
    Hello,
    JobOfBatch,
    Log,
    Phase,
    Progress,
    Result,
    Violation,
)
from supervisor.worker.recorder import Recorder

# With the default kill_grace; another one stretches them. Their sum stays below it, since then the supervisor kills the
# worker itself.
LET_GO = 2.0  # seconds for the program to stop a job when asked
TERM_GRACE = 1.5  # then seconds after TERM, before KILL
BYE_GRACE = 5.0  # seconds to end after its bye, before TERM
_SET_UP = 0.95  # of startup_timeout: we can report what was missing, the supervisor only that it took too long
_LOOK = 0.1  # seconds between two checks whether the job was cancelled
_MOST_LOGGED = 1000  # log messages per job


class SubprocessHandler:
    """The handler interface of an executor. Used by one thread, the worker's main thread.

    `leave` asks the worker to exit after the current job; `lost` records, in a sentence, that the program
    died or was killed because of its own fault. `recorder` receives what runs and what it prints.
    """

    loop_changed = False

    def __init__(
        self,
        pool: PoolSettings,
        folder: Path,
        *,
        leave: Callable[[], None],
        lost: Callable[[str], None],
        recorder: Recorder,
    ) -> None:
        self.name = shlex.join(pool.command)
        self._pool = pool
        self._folder = folder
        self._leave = leave
        self._lost = lost
        self._recorder = recorder
        self._over = False
        self._logged = 0
        self._oom = OomCounter()
        self._look_at = 0.0
        self._log = events(pool=pool.name)
        self._stretch = pool.kill_grace / KILL_GRACE

    # The worker's set-up and end

    def setup(self, ctx: Context) -> None:
        """Start the program and wait for its hello. Raises HandlerError, with the program ended."""
        until = time.monotonic() + self._pool.startup_timeout * _SET_UP
        try:
            file = executable(self._pool.command[0], self._folder, self._pool.env)
            environ = environment.of_program(self._pool.env, ctx.device)
            self._program = Program(file, self._pool.command, self._folder, environ)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise HandlerError(f"{self.name}: it cannot be started: {why}") from None
        self._recorder.watch(self._program.pid)
        self._output = Output(self._program.output, self._program.pidfd, self._leave, self._recorder.run_log.add)
        self._output.start()
        self._link = ProgramLink(self._program)
        self._log.debug("program_started", pid=self._program.pid, command=self.name)
        try:
            self._greet(ctx, until)
        except (Violation, Ended) as error:
            ending = self._end(by_itself=isinstance(error, Ended))
            what = f"{ending} before its hello" if isinstance(error, Ended) else error
            raise HandlerError(f"{self.name}: it {what}{self._last_line()}") from None
        except HandlerError:
            self._end()
            raise
        except ValueError as error:
            self._end()
            raise HandlerError(f"{self.name}: the pool's options cannot be written as JSON: {error}") from None

    def _greet(self, ctx: Context, until: float) -> None:
        greet = self._link.conversation.greet
        self._link.send(greet(self._pool.name, ctx.capabilities, dict(ctx.options), ctx.device))
        while not isinstance(reply := self._link.next(until), Hello):
            if reply is None or time.monotonic() > until:
                patience = human(self._pool.startup_timeout)
                raise HandlerError(f"{self.name}: it has not said hello within startup_timeout, {patience}")
            self._log_event(reply, ctx.log)
        missing = set() if reply.capabilities is None else set(ctx.capabilities) - reply.capabilities
        if missing:
            raise HandlerError(f"{self.name}: it lacks capabilities of the pool: {', '.join(sorted(missing))}")
        if self._pool.batch_size > 1 and not reply.batches:
            why = 'its hello must say "batches": true, because the pool has batches'
            raise HandlerError(f"{self.name}: it takes one job at a time; {why}")

    def teardown(self, ctx: Context) -> None:
        """Send bye, and end the program if it does not exit by itself."""
        if self._over:
            return
        if self._program.wait(0):
            ending = self._end()
            self._lost(f"between jobs the program {ending}")
            return
        self._link.part(time.monotonic() + BYE_GRACE)
        self._end()

    # One job

    def handle(self, payload: Any, ctx: Context) -> Any:
        """Give the program a job and wait for its result.

        Raises what the executor turns into an outcome: Reported, JobInterrupted; Crashed if the program
        died with the job; NotBegun if it was dead before.
        """
        with _blocked(signals.INTERRUPT):
            self._look_up()
            self._hand_over(payload, ctx)
            try:
                reply = self._wait_for_result(ctx)
            except JobInterrupted as interrupted:
                self._stop(interrupted)
            except (Violation, Ended) as error:
                self._crash(error)
        return self._outcome(reply, ctx)

    def handle_batch(self, payloads: Sequence[Any], ctx: BatchContext) -> list[Any]:
        """The same for several jobs at once: a result, or an exception as a value, for each. An error of the program
        for the whole batch is raised.
        """
        replies: list[Any] = [_unsendable(payload) for payload in payloads]
        places = [place for place, reply in enumerate(replies) if reply is None]
        if not places:
            return replies
        with _blocked(signals.INTERRUPT):
            self._look_up()
            self._hand_over_batch([(payloads[place], ctx.jobs[place]) for place in places])
            try:
                answers = self._wait_for_answers([ctx.jobs[place] for place in places], ctx)
            except JobInterrupted as interrupted:
                self._stop(interrupted, "the batch")
            except (Violation, Ended) as error:
                self._crash(error, f"a batch of {len(places)} job{'s' * (len(places) > 1)}")
        for place, answer in zip(places, answers, strict=True):
            try:
                replies[place] = self._outcome(answer, ctx.jobs[place])
            except Reported as failure:
                replies[place] = failure
        return replies

    def _hand_over_batch(self, jobs: Sequence[tuple[Any, Context]]) -> None:
        written = [JobOfBatch(ctx.job_id, ctx.type, ctx.attempt, payload, _key(ctx)) for payload, ctx in jobs]
        self._send(self._link.conversation.batch(written, self._pool.timeout_of(written[0].type)))

    def _wait_for_answers(self, jobs: Sequence[Context], ctx: Context) -> list[Result | Error]:
        """Until each job has its answer. JobInterrupted can only be raised while waiting."""
        answers: dict[int, Result | Error] = {}
        asked: set[int] = set()
        while len(answers) < len(jobs):
            for place, job in enumerate(jobs):
                if place not in asked and job.cancelled:
                    asked.add(place)
                    self._link.send(self._link.conversation.cancel(now=False, place=place))
            self._look_for_oom(self._oom.look)
            reply = self._link.next(time.monotonic() + _LOOK)
            if isinstance(reply, Answer):
                answers[reply.place] = reply.reply
            elif isinstance(reply, Error):
                raise self._failure(reply, keep=self._pool.batch_auto and len(jobs) > 1)
            elif isinstance(reply, Emit):
                self._emit(reply, jobs[reply.place])
            elif reply is not None:
                self._process_event(reply, ctx)
        return [answers[place] for place in range(len(jobs))]

    def _look_up(self) -> None:
        """Read what was sent between jobs, when only log lines are allowed."""
        if not self._over:
            try:
                for event in self._link.read_between():
                    self._log_event(event, self._log)
            except (Violation, Ended) as error:
                self._abandon_unstarted(error)
            return
        self._leave()
        raise NotBegun

    def _abandon_unstarted(self, error: Violation | Ended) -> NoReturn:
        """The program is dead, or must be killed, without having started the job."""
        ending = self._end()
        self._lost(f"between jobs the program {ending if isinstance(error, Ended) else error}")
        self._leave()
        raise NotBegun

    def _hand_over(self, payload: Any, ctx: Context) -> None:
        timeout = self._pool.timeout_of(ctx.type)
        try:
            line = self._link.conversation.job(ctx.job_id, ctx.type, ctx.attempt, payload, timeout, _key(ctx))
        except ValueError as error:
            raise Reported("payload", f"the payload cannot be sent to a program as JSON: {error}") from None
        self._send(line)

    def _send(self, line: bytes) -> None:
        self._output.begin()
        self._look_for_oom(self._oom.forget)
        self._logged = 0
        self._link.send(line)
        self._handed = len(line)

    def _wait_for_result(self, ctx: Context) -> Result | Error:
        """Until the job's result. JobInterrupted can only be raised while waiting, nowhere else."""
        asked = False
        while True:
            if not asked and ctx.cancelled:
                asked = True
                self._link.send(self._link.conversation.cancel(now=False))
            self._look_for_oom(self._oom.look)
            reply = self._link.next(time.monotonic() + _LOOK)
            if isinstance(reply, (Result, Error)):
                return reply
            if reply is not None:
                self._process_event(reply, ctx)

    def _look_for_oom(self, look: Callable[[], None]) -> None:
        """Once a second, so that old kills by the kernel are not attributed to this program."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + 1.0
            look()

    def _stop(self, interrupted: JobInterrupted, what: str = "the job") -> NoReturn:
        """The job must stop: ask, then TERM, then KILL. A program that stops the job is kept."""
        talk, until = self._link.conversation, time.monotonic() + LET_GO * self._stretch
        self._link.send(talk.cancel(now=True))
        with contextlib.suppress(Violation, Ended):
            while talk.phase is Phase.BUSY and time.monotonic() < until:  # only the end counts of what it sends
                reply = self._link.next(until)
                last = reply.reply if isinstance(reply, Answer) else reply
                if isinstance(last, Error):
                    interrupted.traceback = last.traceback
        if talk.phase is not Phase.IDLE:
            interrupted.traceback = (
                f"the program did not stop {what}, and {self._end(grace=TERM_GRACE * self._stretch)}"
            )
            self._leave()
        interrupted.stderr = self._output.tail()
        raise interrupted

    def _crash(self, error: Violation | Ended, busy: str = "the job") -> NoReturn:
        """The program is dead, or must be killed: the job is charged a crash, and the worker exits.

        Not a job that the program never read from its input: the cause came before it.
        """
        if self._link.untaken >= self._handed:
            self._abandon_unstarted(error)
        broke = isinstance(error, Violation)
        ending = self._end(by_itself=not broke)
        what = f"{error}; it was killed" if broke else f"{ending} while it was running {busy}{ending.hint}"
        what = f"the program {what}"
        self._lost(what)
        self._leave()
        raise Crashed(
            Failure(
                "protocol" if broke else "out_of_memory" if ending.out_of_memory else "crash",
                what,
                exit_code=None if broke else ending.exit_code,
                signal=None if broke else ending.signal,
                stderr=self._output.tail(),
                peak_memory=ending.peak_memory,
            )
        )

    def _outcome(self, reply: Result | Error, ctx: Context) -> Any:
        if isinstance(reply, Result):
            self._output.settle()
            try:
                for child in reply.children:
                    ctx.enqueue(**child)
            except InvalidJob as error:
                raise Reported("exception", f"a job that it enqueued was rejected: {error}") from None
            return reply.value
        raise self._failure(reply)

    def _failure(self, reply: Error, *, keep: bool = False) -> Reported:
        """What the program reports. For lack of memory it is replaced, unless it is to `keep`."""
        if reply.kind == "memory" and not keep:
            self._leave()  # whatever it has run out of, the next program starts fresh
        kind = "permanent" if reply.permanent else "retry" if reply.retry else reply.kind
        stderr = self._output.tail()
        return Reported(kind, reply.message, after=reply.after, traceback=reply.traceback, stderr=stderr)

    def _process_event(self, reply: object, ctx: Context) -> None:
        if isinstance(reply, Progress):
            ctx.progress(reply.fraction, reply.text)
        elif isinstance(reply, Extend):
            ctx.extend(reply.seconds)
        elif isinstance(reply, Emit):
            self._emit(reply, ctx)
        else:
            self._log_event(reply, ctx.log)

    def _emit(self, reply: Emit, ctx: Context) -> None:
        try:
            ctx.emit(reply.chunk)
        except InvalidJob as error:
            self._log_event(Log("warning", "chunk_refused", {"why": str(error)}), ctx.log)

    def _log_event(self, reply: object, log: Any) -> None:
        """Pass on what the program logs, up to a limit per job."""
        assert isinstance(reply, Log)
        self._logged += 1
        if self._logged <= _MOST_LOGGED:
            getattr(log, reply.level)(reply.text, **({"fields": reply.fields} if reply.fields else {}))
        elif self._logged == _MOST_LOGGED + 1:
            log.warning("program_logs_too_much", most=_MOST_LOGGED, hint="the rest of this job's log is dropped")

    def _end(self, *, by_itself: bool = False, grace: float = TERM_GRACE) -> Ending:
        """`by_itself`: it had ended before we did anything."""
        self._over = True
        ending = self._program.end(grace)
        self._recorder.unwatch()
        if by_itself and ending.signal == "SIGKILL" and self._oom.struck():
            ending = ending._replace(out_of_memory=True)
        self._output.join(CLOSING)
        if not self._output.is_alive():
            self._program.close()
        self._log.debug("program_ended", pid=self._program.pid, how=str(ending))
        return ending

    def _last_line(self) -> str:
        lines = (self._output.tail() or "").strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""


@contextlib.contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Block a signal; it is delivered where it is waited for, or at the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _unsendable(payload: Any) -> Reported | None:
    """What is wrong with a payload that JSON cannot represent."""
    try:
        json.dumps(payload, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return Reported("payload", f"the payload cannot be sent to a program as JSON: {error}")
    return None


def _key(ctx: Context) -> str | None:
    """The run's idempotency key; without a database there is none, and few programs need one."""
    try:
        return ctx.idempotency_key
    except StoreError:
        return None
