"""A handler that is a program: it receives jobs as lines and answers with progress, results and errors.

A worker has one program for its whole life. When the program ends, or must be killed, the worker exits
after it has settled what it holds, and the pool replaces both; so no program is restarted here.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor.config.machine import executable
from supervisor.config.pool_settings import PoolSettings
from supervisor.domain.errors import InvalidJob, StoreError
from supervisor.domain.process_health import KILL_GRACE
from supervisor.domain.settlement import Failure
from supervisor.domain.text import human
from supervisor.system import signals
from supervisor.system.resources import OomCounter
from supervisor.telemetry import events
from supervisor.worker import environment
from supervisor.worker.context import BatchContext, Context, JobInterrupted
from supervisor.worker.handler import Crashed, HandlerError, NotBegun, Reported
from supervisor.worker.program import CLOSING, Ended, Ending, Output, Program
from supervisor.worker.protocol import Message, Phase, Violation, greeting
from supervisor.worker.recorder import Recorder

# With the default kill_grace; another one stretches them. Their sum stays below it, since then the supervisor kills the
# worker itself.
LET_GO = 2.0  # seconds for the program to stop a job when asked
TERM_GRACE = 1.5  # then seconds after TERM, before KILL
BYE_GRACE = 5.0  # seconds to end after its bye, before TERM
_SET_UP = 0.95  # of startup_timeout: we can report what was missing, the supervisor only that it took too long
_MOST_BETWEEN = 4096  # lines that are read before a job; those of a program that keeps writing are read during it
_LOOK = 0.1  # seconds between two checks whether the job was cancelled


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
        self._oom = OomCounter()
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
        self._log.debug("program_started", pid=self._program.pid, command=self.name)
        try:
            why = self._greet(ctx, until)
        except ValueError as error:
            why = f"the pool's options cannot be written as JSON: {error}"
        except (Violation, Ended) as error:
            ended = self._end(by_itself=isinstance(error, Ended))
            lines = (self._output.tail() or "").strip().splitlines()
            why = f"it {error}" if isinstance(error, Violation) else f"it {ended} before its hello"
            why += f": {lines[-1].strip()}" if lines else ""
        if why:
            if not self._over:
                self._end()
            raise HandlerError(f"{self.name}: {why}")

    def _greet(self, ctx: Context, until: float) -> str:
        """What is wrong with its hello, if anything is."""
        self._program.send(greeting(self._pool.name, ctx.capabilities, ctx.options, ctx.device))
        while (hello := self._program.next(until)) is None or hello["type"] != "hello":
            if hello is None or time.monotonic() > until:
                return f"it has not said hello within startup_timeout, {human(self._pool.startup_timeout)}"
            _log_event(hello, ctx.log)
        capabilities = hello["capabilities"]
        if capabilities is not None and (missing := set(ctx.capabilities) - capabilities):
            return f"it lacks capabilities of the pool: {', '.join(sorted(missing))}"
        if self._pool.batch_size > 1 and not hello["batches"]:
            return 'it takes one job at a time; its hello must say "batches": true, because the pool has batches'
        return ""

    def teardown(self, ctx: Context) -> None:
        """Send bye, and end the program if it does not exit by itself."""
        if self._over:
            return
        if self._program.wait(0):
            self._lost(f"between jobs the program {self._end()}")
            return
        self._program.part(time.monotonic() + BYE_GRACE)
        self._end()

    # One job, or a batch

    def handle(self, payload: Any, ctx: Context) -> Any:
        """Give the program a job and wait for its result.

        Raises what the executor turns into an outcome: Reported, JobInterrupted; Crashed if the program
        died with the job; NotBegun if it was dead before.
        """
        [reply] = self._run([payload], [ctx], ctx, together=False)
        return self._outcome(reply, ctx)

    def handle_batch(self, payloads: Sequence[Any], ctx: BatchContext) -> list[Any]:
        """The same for several jobs at once: a result, or an exception as a value, for each. An error of the program
        for the whole batch is raised.
        """
        results: list[Any] = []
        for reply, job in zip(self._run(payloads, ctx.jobs, ctx, together=True), ctx.jobs, strict=True):
            try:
                results.append(self._outcome(reply, job))
            except Reported as failure:
                results.append(failure)
        return results

    def _run(self, payloads: Sequence[Any], jobs: Sequence[Context], ctx: Context, *, together: bool) -> list[Message]:
        """The program's answer to each of these jobs. JobInterrupted can only be raised while it is waited for."""
        with _blocked(signals.INTERRUPT):
            self._read_between()
            given = [_message(job, payload) for job, payload in zip(jobs, payloads, strict=True)]
            timeout = self._pool.timeout_of(jobs[0].type)
            try:
                line = self._program.conversation.hand_over(given, timeout, together=together)
            except ValueError as error:
                raise Reported("payload", f"the payload cannot be sent to a program as JSON: {error}") from None
            self._output.begin()
            self._program.send(line)
            try:
                return self._answers(jobs, ctx)
            except JobInterrupted as interrupted:
                self._stop(interrupted, "the batch" if together else "the job")
            except (Violation, Ended) as error:
                if self._program.untaken >= len(line):  # it has never read it: the cause came before
                    self._abandon_unstarted(error)
                what = f"a batch of {len(jobs)} job{'s' * (len(jobs) > 1)}" if together else "the job"
                self._crash(error, what)

    def _answers(self, jobs: Sequence[Context], ctx: Context) -> list[Message]:
        answers: dict[int, Message] = {}
        asked: set[int] = set()
        while len(answers) < len(jobs):
            for index, job in enumerate(jobs):
                if index not in asked and job.cancelled:
                    asked.add(index)
                    self._program.send(self._program.conversation.cancel(now=False, index=index))
            reply = self._program.next(time.monotonic() + _LOOK)
            if reply is None:
                continue
            if reply["type"] not in ("result", "error"):
                _event(reply, jobs, ctx)
            elif reply["index"] is None:  # of the whole batch
                raise self._failure(reply, keep=self._pool.batch_auto and len(jobs) > 1)
            else:
                answers[reply["index"]] = reply
        return [answers[index] for index in range(len(jobs))]

    def _read_between(self) -> None:
        """Read what was sent between jobs, when only log lines are allowed."""
        if self._over:
            self._leave()
            raise NotBegun
        try:
            for _ in range(_MOST_BETWEEN):
                if (event := self._program.next()) is None:
                    break
                _log_event(event, self._log)
        except (Violation, Ended) as error:
            self._abandon_unstarted(error)

    def _abandon_unstarted(self, error: Violation | Ended) -> NoReturn:
        """The program is dead, or must be killed, without having started the job."""
        ending = self._end()
        self._lost(f"between jobs the program {ending if isinstance(error, Ended) else error}")
        self._leave()
        raise NotBegun

    def _stop(self, interrupted: JobInterrupted, what: str) -> NoReturn:
        """The job must stop: ask, then TERM, then KILL. A program that stops the job is kept."""
        talk, until = self._program.conversation, time.monotonic() + LET_GO * self._stretch
        self._program.send(talk.cancel(now=True))
        with contextlib.suppress(Violation, Ended):
            while talk.phase is Phase.BUSY and time.monotonic() < until:  # only the end counts of what it sends
                reply = self._program.next(until)
                if reply is not None and reply["type"] == "error":
                    interrupted.traceback = reply["traceback"]
        if talk.phase is not Phase.IDLE:
            ending = self._end(grace=TERM_GRACE * self._stretch)
            interrupted.traceback = f"the program did not stop {what}, and {ending}"
            self._leave()
        interrupted.stderr = self._output.tail()
        raise interrupted

    def _crash(self, error: Violation | Ended, busy: str) -> NoReturn:
        """The program is dead, or must be killed: the job is charged a crash, and the worker exits."""
        broke = isinstance(error, Violation)
        ending = self._end(by_itself=not broke)
        what = f"{error}; it was killed" if broke else f"{ending} while it was running {busy}{ending.hint}"
        self._lost(f"the program {what}")
        self._leave()
        raise Crashed(
            Failure(
                "protocol" if broke else "out_of_memory" if ending.out_of_memory else "crash",
                f"the program {what}",
                exit_code=None if broke else ending.exit_code,
                signal=None if broke else ending.signal,
                stderr=self._output.tail(),
                peak_memory=ending.peak_memory,
            )
        )

    def _outcome(self, reply: Message, ctx: Context) -> Any:
        if reply["type"] == "error":
            raise self._failure(reply)
        self._output.settle()
        try:
            for child in reply["enqueue"]:
                ctx.enqueue(**child)
        except InvalidJob as error:
            raise Reported("exception", f"a job that it enqueued was rejected: {error}") from None
        return reply["value"]

    def _failure(self, reply: Message, *, keep: bool = False) -> Reported:
        """What the program reports. For lack of memory it is replaced, unless it is to `keep`."""
        kind, after = reply["kind"], reply["after"]
        if kind == "memory" and not keep:
            self._leave()  # whatever it has run out of, the next program starts fresh
        if reply["permanent"]:
            kind = "permanent"
        elif reply["retry"] or after is not None:
            kind = "retry"
        stderr = self._output.tail()
        return Reported(kind, reply["message"], after=after, traceback=reply["traceback"], stderr=stderr)

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


@contextlib.contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Block a signal; it is delivered where it is waited for, or at the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _message(job: Context, payload: Any) -> Message:
    """A job as the program gets it."""
    try:
        key = job.idempotency_key
    except StoreError:  # without a database there is none, and few programs need one
        key = None
    about = {"job_id": job.job_id, "idempotency_key": key, "job_type": job.type, "attempt": job.attempt}
    return {**about, "payload": payload}


def _event(reply: Message, jobs: Sequence[Context], ctx: Context) -> None:
    match reply["type"]:
        case "progress":
            ctx.progress(reply["fraction"], reply["text"])
        case "extend":
            ctx.extend(reply["seconds"])
        case "emit":
            try:
                jobs[reply["index"]].emit(reply["chunk"])
            except InvalidJob as error:
                ctx.log.warning("chunk_refused", fields={"why": str(error)})
        case "log":
            _log_event(reply, ctx.log)


def _log_event(reply: Message, log: Any) -> None:
    getattr(log, reply["level"])(reply["text"], **({"fields": reply["fields"]} if reply["fields"] else {}))
