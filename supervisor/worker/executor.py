"""Run one job to its settlement: the one place where an outcome is decided."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.domain.duration import human
from supervisor.domain.errors import Fail, InvalidJob, Retry
from supervisor.domain.intake import MAX_PAYLOAD_BYTES, encode
from supervisor.domain.job import Claim
from supervisor.domain.retry import RetryPolicy
from supervisor.domain.settlement import Failure, Settlement, cancelled, crashed, done, failed, released, suspected
from supervisor.worker.context import BatchContext, Board, Context, JobInterrupted
from supervisor.worker.loader import AnyHandler, Handler
from supervisor.worker.outcomes import Crashed, NotBegun, Reported


class Executor:
    """A handler with what it needs around it. `timeout` is seconds, for messages only; `exhausted` is called
    when a handler has met the limit of its memory.
    """

    def __init__(
        self,
        handler: AnyHandler,
        board: Board,
        policy: RetryPolicy,
        *,
        capabilities: tuple[str, ...] = (),
        options: Mapping[str, Any],
        device: str | None = None,
        timeout: float = 0.0,
        timed_out: Any = None,
        exhausted: Callable[[], None] = lambda: None,
        max_crashes: int = 3,
    ) -> None:
        self._handler = handler
        self._board = board
        self._policy = policy
        self._capabilities = capabilities
        self._options = options
        self._device = device
        self._timeout = timeout
        self._exhausted = exhausted
        self._max_crashes = max_crashes
        self._timed_out = timed_out or (lambda claim: False)

    def context(self, claim: Claim | None = None) -> Context:
        return Context(
            self._board, claim=claim, capabilities=self._capabilities, options=self._options, device=self._device
        )

    def run(self, claim: Claim) -> Settlement:
        """Run the handler; whatever happens inside it becomes a settlement, never an exception."""
        started_at = time.time()
        ctx = self.context(claim)
        try:
            payload = _decoded(claim.payload)
            value = self._handler.handle(payload, ctx)
            result = None if value is None else encode("result", value)
        except BaseException as error:
            return self._unsuccessful(claim, error, started_at)
        return done(claim, result, started_at=started_at, progress=ctx.reported, children=tuple(ctx.children))

    def run_batch(self, claims: Sequence[Claim]) -> list[Settlement]:
        """The same for several jobs together. What nobody's payload explains is charged to nobody: the jobs go
        back, to be run in smaller batches.
        """
        started_at = time.time()
        payloads: list[Any] = []
        taken: list[Claim] = []
        settlements: list[Settlement] = []
        for claim in claims:
            try:
                payloads.append(_decoded(claim.payload))
                taken.append(claim)
            except _BadPayload as error:
                settlements.append(self._unsuccessful(claim, error, started_at))
        if not taken:
            return settlements
        contexts = [self.context(claim) for claim in taken]
        assert isinstance(self._handler, Handler)  # a program is never given a batch
        try:
            values = self._handler.handle_batch(payloads, BatchContext(self._board, contexts))
        except BaseException as error:
            return settlements + self.batch_failed(taken, error, started_at)
        together = zip(taken, contexts, values, strict=True)
        return settlements + [self._outcome(claim, ctx, value, started_at) for claim, ctx, value in together]

    def batch_failed(self, claims: Sequence[Claim], error: BaseException, started_at: float) -> list[Settlement]:
        """What becomes of the jobs of a batch that has raised. A wish to retry is meant for all of them."""
        if len(claims) == 1 or isinstance(error, Retry):
            return [self._unsuccessful(claim, error, started_at) for claim in claims]
        from supervisor.telemetry import events  # most batches succeed

        events().warning(
            "batch_failed",
            jobs=[claim.job_id for claim in claims],
            error=_message(error) or type(error).__name__,
            stack=_stack(error),
            hint="uncharged; they run again in smaller batches, until the one is found that fails alone",
        )
        if isinstance(error, MemoryError):
            self._make_room(error)
        return [suspected(claim, len(claims)) for claim in claims]

    def _outcome(self, claim: Claim, ctx: Context, value: Any, started_at: float) -> Settlement:
        """Of one job, by what handle_batch returned for it."""
        try:
            if isinstance(value, BaseException):
                raise value
            result = None if value is None else encode("result", value)
        except BaseException as error:
            return self._unsuccessful(claim, error, started_at)
        return done(claim, result, started_at=started_at, progress=ctx.reported, children=tuple(ctx.children))

    def _unsuccessful(self, claim: Claim, error: BaseException, started_at: float) -> Settlement:
        if isinstance(error, JobInterrupted):
            return self.interrupted(claim, error, started_at)
        if isinstance(error, NotBegun):
            return released(claim)
        if isinstance(error, Crashed):
            failure = replace(error.failure, duration=time.time() - started_at)
            return crashed(claim, failure, self._policy, self._max_crashes, chance=random.random())
        if isinstance(error, MemoryError):
            self._make_room(error)
        kind = _kind(error)
        return failed(
            claim,
            Failure(
                kind,
                _message(error),
                traceback=None if isinstance(error, (Fail, _BadPayload)) else _stack(error),
                stderr=error.stderr if isinstance(error, Reported) else None,
                duration=time.time() - started_at,
            ),
            self._policy,
            chance=random.random(),
            permanent=kind in ("permanent", "payload"),
            after=error.after if isinstance(error, (Retry, Reported)) else None,
            started_at=started_at,
        )

    def _make_room(self, error: MemoryError) -> None:
        # What the handler had filled the memory with is still in its frames; writing this up takes some.
        traceback.clear_frames(error.__traceback__)
        self._exhausted()

    def interrupted(self, claim: Claim, error: JobInterrupted, started_at: float) -> Settlement:
        """The job was cancelled or is over its time limit, and the handler has let go of it."""
        if not self._timed_out(claim):
            return cancelled(claim, started_at=started_at)
        message = f"over its time limit of {human(self._timeout)}"
        failure = Failure(
            "timeout", message, traceback=_stack(error), stderr=error.stderr, duration=time.time() - started_at
        )
        return failed(claim, failure, self._policy, chance=random.random(), started_at=started_at)


class _BadPayload(Exception):
    """The row holds no JSON: another program wrote it, and no attempt can mend it."""


def _decoded(payload: str | bytes) -> Any:
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            raise _BadPayload("the payload is no valid UTF-8") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise _BadPayload(f"the payload has {len(payload)} characters; the limit is {MAX_PAYLOAD_BYTES}")
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise _BadPayload(f"the payload is no JSON: {error}") from None


def _kind(error: BaseException) -> str:
    if isinstance(error, Fail):
        return "permanent"
    if isinstance(error, Retry):
        return "retry"
    if isinstance(error, _BadPayload):
        return "payload"
    if isinstance(error, Reported):
        return error.kind
    if isinstance(error, InvalidJob) and error.field == "result":
        return "result"
    if isinstance(error, SystemExit):
        return "exit"
    return "memory" if isinstance(error, MemoryError) else "exception"


def _message(error: BaseException) -> str:
    if isinstance(error, (Fail, Retry, Reported, _BadPayload)):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the handler called sys.exit({error.code!r})"
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text or type(error).__name__


def _stack(error: BaseException) -> str | None:
    if isinstance(error, Reported) or (isinstance(error, JobInterrupted) and error.traceback is not None):
        return error.traceback
    # Our own frame that called the handler says nothing to its author.
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, inner))
