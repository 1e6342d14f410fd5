"""A worker's middleware: called around each run and after each failed attempt. Its errors harm no job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from traceback import format_exception
from types import TracebackType
from typing import Any

from supervisor.domain import middleware
from supervisor.domain.errors import Fail, Retry, Snooze
from supervisor.domain.job import Status
from supervisor.domain.middleware import EnqueueHooks, FailedJob, Middleware, WorkerInfo
from supervisor.domain.settlement import Settlement
from supervisor.worker import returned_fork
from supervisor.worker.context import Context, JobInterrupted

Run = Callable[[Any, Context], Any]

_PAUSE = 60.0  # seconds between two log lines about the same hook: a broken one may fail thousands of times a second
_DECISIONS = (JobInterrupted, Retry, Fail, Snooze)  # of the worker, which ends a run, and of a middleware about it
_OWN = ("supervisor.worker.", "supervisor.domain.", "supervisor.contrib.")


class WorkerMiddleware:
    """The middleware of one worker, the first one outermost."""

    def __init__(self, loaded: Iterable[Middleware], worker: WorkerInfo) -> None:
        self._all = list(loaded)
        self._worker = worker
        self._logged_at: dict[tuple[str, str], float] = {}
        self._around = self._hooks("around_run")
        self._on_failure = self._hooks("on_failure")
        self.on_enqueue = EnqueueHooks(self._all, self.report)

    def _hooks(self, name: str) -> list[tuple[str, Callable[..., Any]]]:
        return [(one.name, hook) for one in self._all if callable(hook := one.hook(name))]

    def set_up(self) -> None:
        """Call every `setup`, and let everything that this process enqueues pass through `on_enqueue`."""
        middleware.set_for_process(self.on_enqueue)
        for name, hook in self._hooks("setup"):
            self._attempt(name, "setup", hook)

    def tear_down(self) -> None:
        for name, hook in reversed(self._hooks("teardown")):
            self._attempt(name, "teardown", hook)

    def _attempt(self, name: str, what: str, hook: Callable[..., Any]) -> None:
        try:
            hook(self._worker)
        except BaseException as error:
            returned_fork.leave(error)
            self.report(name, what, error)
        returned_fork.leave()

    def around(self, run: Run) -> Run:
        """`run` with every `around_run` around it; `run` itself if there is none."""
        for name, hook in reversed(self._around):
            run = self._layer(name, hook, run)
        return run

    def _layer(self, name: str, hook: Callable[..., Any], run: Run) -> Run:
        def layer(payload: Any, ctx: Context) -> Any:
            inner = _Call(run, payload, ctx)
            try:
                hook(inner, ctx)
            except BaseException as error:
                returned_fork.leave(error)
                if isinstance(error, _DECISIONS) and error is not inner.error:
                    raise
                if error is not inner.error:
                    self.report(name, "around_run", error)
            else:
                if not inner.called:
                    self.report(name, "around_run", RuntimeError("it has not called call()"))
            return inner()

        return layer

    def failed(self, settlement: Settlement, error: BaseException) -> None:
        """Tell of an attempt that failed. A run that was cancelled or released has not failed."""
        claim, failure = settlement.claim, settlement.failure
        if not self._on_failure or claim is None or failure is None or settlement.status is Status.CANCELLED:
            return
        job = FailedJob(
            claim.job_id,
            claim.type,
            claim.attempt,
            self._worker.pool,
            self._worker.name,
            settlement.status is not Status.PENDING,
            failure.kind,
            failure.message,
            settlement.delay,
        )
        error.__traceback__ = own_traceback(error.__traceback__)
        for name, hook in self._on_failure:
            try:
                hook(job, error)
            except JobInterrupted:
                raise
            except BaseException as worse:
                returned_fork.leave(worse)
                self.report(name, "on_failure", worse)
            returned_fork.leave()

    def report(self, name: str, hook: str, error: BaseException) -> None:
        """Log it; the same hook at most once a minute."""
        now = monotonic()
        if now - self._logged_at.get((name, hook), -_PAUSE) < _PAUSE:
            return
        self._logged_at[name, hook] = now
        stack = "".join(format_exception(type(error), error, error.__traceback__))
        about = {"middleware": name, "hook": hook, "error": f"{type(error).__name__}: {error}", "stack": stack}
        self._worker.log.error("middleware_failed", **about, hint="the job is not affected")


class _Call:
    """What `around_run` calls: the run, once, whatever the middleware does."""

    def __init__(self, run: Run, payload: Any, ctx: Context) -> None:
        self._run = run
        self._payload = payload
        self._ctx = ctx
        self._value: Any = None
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None
        self.called = False

    def __call__(self) -> Any:
        """The result of the run, or its error; a second call runs nothing."""
        if not self.called:
            self.called = True
            try:
                self._value = self._run(self._payload, self._ctx)
            except BaseException as error:
                returned_fork.leave(error)
                self.error, self.traceback = error, own_traceback(error.__traceback__)
            returned_fork.leave()
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)
        return self._value


def own_traceback(stack: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the handler's own frame."""
    inner = stack
    while inner is not None and _is_ours(inner):
        inner = inner.tb_next
    return inner or (stack and stack.tb_next)


def cut_behind_handler(stack: TracebackType | None) -> None:
    """Remove the frames behind the handler's last one: those in which we have interrupted it."""
    last = None
    while stack is not None:
        if not _is_ours(stack):
            last = stack
        stack = stack.tb_next
    if last is not None:
        last.tb_next = None


def _is_ours(stack: TracebackType) -> bool:
    return str(stack.tb_frame.f_globals.get("__name__", "")).startswith(_OWN)
