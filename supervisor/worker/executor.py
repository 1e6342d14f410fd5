"""Runs a job; whatever the handler does becomes a Settlement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

# Imported by name, here and in everything a worker does between two jobs: a handler that replaces time.time or
# json.dumps must not affect the jobs after it.
from json import JSONDecoder
from random import random
from time import time
from traceback import clear_frames, format_exception, format_exception_only
from typing import Any

from supervisor.domain.errors import Fail, InvalidJob, Retry, Snooze
from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import (
    MAX_MESSAGE,
    MAX_TEXT,
    Failure,
    RetryPolicy,
    Settlement,
    cancelled,
    clipped,
    crashed,
    done,
    failed,
    released,
    snoozed,
)
from supervisor.domain.text import human, refuse_constant
from supervisor.domain.values import MAX_PAYLOAD_BYTES, encode
from supervisor.worker import returned_fork
from supervisor.worker.context import NO_JOB, RUN_ENDED, Board, Context, JobInterrupted
from supervisor.worker.handler import AnyHandler, BadPayload, Crashed, NotBegun, Reported
from supervisor.worker.middleware import WorkerMiddleware, cut_behind_handler, own_traceback
from supervisor.worker.recorder import WORTH, Recorder


@dataclass(eq=False)
class Executor:
    """A handler and what it needs. `timeout` gives the seconds of a type, for messages only; `exhausted` is called when
    a handler has reached the memory limit. `recorder` keeps what runs use and print. `log` names pool and worker.
    """

    handler: AnyHandler
    board: Board
    policy: JobPolicy
    _: KW_ONLY
    capabilities: tuple[str, ...] = ()
    options: Mapping[str, Any]
    device: str | None = None
    timeout: Callable[[str], float] = lambda type: 0.0
    timed_out: Callable[[Claim], bool] = lambda claim: False
    exhausted: Callable[[], None] = lambda: None
    recorder: Recorder = field(default_factory=Recorder)
    middleware: WorkerMiddleware | None = None
    log: Any = None
    clock: Callable[[], float] = time

    def __post_init__(self) -> None:
        self.recorder.clock = self.clock
        self._mark = returned_fork.mark
        self._run_log = self.recorder.run_log
        self.handle = self.handler.handle
        if self.middleware is not None:
            self.handle = self.middleware.around(self.handle)

    def context(self, claim: Claim = NO_JOB, board: Board | None = None) -> Context:
        return Context(
            board or self.board, claim=claim, capabilities=self.capabilities, options=self.options, device=self.device
        )

    def run(self, claim: Claim) -> Settlement:
        """Run the handler. Whatever happens inside it becomes a settlement, never an exception."""
        started_at = self.clock()
        ctx = self.context(claim)
        run_log = self._run_log
        run_log.run = claim
        try:
            payload = decoded(claim.payload)
            value = self.handle(payload, ctx)
            if not self._mark[0]:
                returned_fork.end()
            result = None if value is None else encode("result", value)
        except BaseException as error:
            if not self._mark[0]:
                returned_fork.end(error)
            return self.failed(claim, error, started_at)
        finally:
            ctx._board = RUN_ENDED
        children = ctx.close() if ctx._children else ()
        settlement = done(claim, result, started_at=started_at, progress=ctx.reported, children=children)
        if self.policy.follow_ups:
            settlement = self.policy.followed(settlement)
        run_log.run = None
        if self.clock() - started_at < WORTH and not run_log.size:
            return settlement
        return self.recorded([settlement], started_at)[0]

    def failed(self, claim: Claim, error: BaseException, started_at: float) -> Settlement:
        """The same for a run that has raised."""
        return self.recorded([self.unsuccessful(claim, error, started_at)], started_at)[0]

    def recorded(self, settlements: list[Settlement], started_at: float) -> list[Settlement]:
        """The end of a run that gets a row, with what it used; of a batch, each job's share, and all of its output. A
        run that never started stays as it is.
        """
        run_log = self.recorder.run_log
        run_log.run = None
        quick = self.clock() - started_at < WORTH and not run_log.size
        if quick and all(settlement.simple for settlement in settlements):
            return settlements
        usage = self.recorder.usage(started_at)
        if usage.cpu_time is not None:
            usage = usage._replace(cpu_time=usage.cpu_time / len(settlements))
        for at, each in enumerate(settlements):
            if each.status is not Status.PENDING or each.failure is not None or each.batch_limit:
                settlements[at] = each._replace(usage=usage)
        return settlements

    def outcome(self, claim: Claim, ctx: Context, value: Any, started_at: float) -> Settlement:
        """The outcome of one job, from what its handler returned for it, or raised."""
        try:
            if isinstance(value, BaseException):
                raise value
            result = None if value is None else encode("result", value)
        except BaseException as error:
            return self.unsuccessful(claim, error, started_at)
        return self.policy.followed(
            done(claim, result, started_at=started_at, progress=ctx.reported, children=ctx.close())
        )

    def unsuccessful(self, claim: Claim, error: BaseException, started_at: float) -> Settlement:
        """What becomes of a job whose run has raised this."""
        try:
            settlement = self._failure_of(claim, error, started_at)
        except JobInterrupted:
            raise
        except BaseException as worse:
            # An exception may be anything: its class, its message and its attributes are the handler's code.
            failure = Failure("exception", _fallback_description(error, worse), duration=self.clock() - started_at)
            retry = self.policy.retry_of(claim.type)
            settlement = failed(claim, failure, retry, chance=random(), started_at=started_at)
        if self.middleware is not None:
            self.middleware.failed(settlement, error)
        return self.policy.followed(settlement)

    def _failure_of(self, claim: Claim, error: BaseException, started_at: float) -> Settlement:
        if isinstance(error, JobInterrupted):
            return self._interrupted(claim, error, started_at)
        if isinstance(error, NotBegun):
            return released(claim)
        if isinstance(error, Snooze):
            return snoozed(claim, error.delay, started_at=started_at)
        if isinstance(error, Crashed):
            failure = error.failure._replace(duration=self.clock() - started_at)
            return crashed(claim, failure, self.policy.retry_of(claim.type), self.policy.max_crashes, chance=random())
        if isinstance(error, MemoryError):
            self.make_room(error)
        kind, (message, stack) = _kind(error), described(error)
        policy, gives_up = _policy_after(error, kind, message, self.policy.retry_of(claim.type))
        after = _after(error)
        return failed(
            claim,
            Failure(
                kind,
                message,
                traceback=stack,
                stderr=error.stderr if isinstance(error, Reported) else None,
                duration=self.clock() - started_at,
            ),
            policy,
            chance=random(),
            permanent=kind in ("permanent", "payload", "result") or gives_up,
            after=after,
            pause=after or 0.0 if isinstance(error, Retry) and error.whole_key else 0.0,
            started_at=started_at,
        )

    def make_room(self, error: MemoryError) -> None:
        # What the handler filled the memory with is still in its frames, and describing the error needs some memory.
        clear_frames(error.__traceback__)
        self.exhausted()

    def _interrupted(self, claim: Claim, error: JobInterrupted, started_at: float) -> Settlement:
        """The job was cancelled or has exceeded its time limit, and the handler has stopped."""
        if not self.timed_out(claim):
            return cancelled(claim, started_at=started_at)
        failure = Failure(
            "timeout",
            self.over_limit(claim),
            traceback=described(error)[1],
            stderr=error.stderr,
            duration=self.clock() - started_at,
        )
        return failed(claim, failure, self.policy.retry_of(claim.type), chance=random(), started_at=started_at)

    def over_limit(self, claim: Claim) -> str:
        return f"over its time limit of {human(self.timeout(claim.type))}"


_decode = JSONDecoder(parse_constant=refuse_constant).decode  # Python's own takes NaN and Infinity for JSON


def decoded(payload: str | bytes) -> Any:
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            raise BadPayload("the payload is not valid UTF-8") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BadPayload(f"the payload has {len(payload)} characters; the limit is {MAX_PAYLOAD_BYTES}")
    try:
        return _decode(payload)
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"the payload is not valid JSON: {error}") from None


def _kind(error: BaseException) -> str:
    if isinstance(error, Fail):
        return "permanent"
    if isinstance(error, Retry):
        return "retry"
    if isinstance(error, BadPayload):
        return "payload"
    if isinstance(error, Reported):
        return error.kind
    if isinstance(error, InvalidJob) and error.field in ("result", "chunk"):  # what the handler has made
        return "result"
    if isinstance(error, SystemExit):
        return "exit"
    return "memory" if isinstance(error, MemoryError) else "exception"


def _policy_after(error: BaseException, kind: str, message: str, policy: RetryPolicy) -> tuple[RetryPolicy, bool]:
    """The policy after this error, and whether another attempt is pointless. A program's is known by its message."""
    if not isinstance(error, Reported):
        return policy.after(error), policy.gives_up_on(error)
    if kind != "exception":
        return policy, False
    return policy.after_message(message), policy.gives_up_after(message)


def _after(error: BaseException) -> float | None:
    """The delay in seconds before the next attempt that the error asks for; None if there is no valid one."""
    after = error.after if isinstance(error, (Retry, Reported)) else None
    return after if isinstance(after, (int, float)) and after >= 0 else None


def described(error: BaseException) -> tuple[str, str | None]:
    """(message, traceback), limited to the length that is stored."""
    try:
        stack = _stack(error)
        return clipped(_message(error), MAX_MESSAGE), None if stack is None else clipped(stack, MAX_TEXT)
    except JobInterrupted:
        raise
    except BaseException as worse:
        return _fallback_description(error, worse), None


def _fallback_description(error: BaseException, worse: BaseException) -> str:
    return f"{_name(error)}; describing it failed with {_name(worse)}"


def _name(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))  # whatever its metaclass says


def _message(error: BaseException) -> str:
    if isinstance(error, (Fail, Retry, Reported, Crashed, BadPayload)):
        return "".join((str(error),))  # a plain str, also from a subclass of str
    if isinstance(error, SystemExit):
        return f"the handler called sys.exit({error.code!r})"
    if type(error) is InvalidJob:
        return f"supervisor.InvalidJob: {error}"  # where programs import it from
    text = "".join(format_exception_only(type(error), error)).strip()
    return text or _name(error)


def _stack(error: BaseException) -> str | None:
    if isinstance(error, (Fail, Crashed, BadPayload)):
        return None
    if isinstance(error, Reported) or (isinstance(error, JobInterrupted) and error.traceback is not None):
        return error.traceback
    # The frames that call the handler are ours and do not help its author. Nor do those that interrupt it.
    if isinstance(error, JobInterrupted):
        cut_behind_handler(error.__traceback__)
    return "".join(format_exception(type(error), error, own_traceback(error.__traceback__)))
