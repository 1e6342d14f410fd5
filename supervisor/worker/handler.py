"""An object that handles jobs, and its life cycle: a function, a class, or a class for batches."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from supervisor.domain.settlement import Failure
from supervisor.tasks.parameters import signature_of
from supervisor.worker.context import BatchContext, Context
from supervisor.worker.event_loop import EventLoop

Handle = Callable[[Any, Context], Any]
HandleBatch = Callable[[list[Any], Context], Any]
_RESULTS = frozenset({type(None), dict, list, tuple, str, int, float, bool})  # what most handlers return


class HandlerError(Exception):
    """The handler cannot be used; one sentence says why. If the pool's options are the cause, `options` has a key, as
    a path, and a sentence for each fault.
    """

    def __init__(self, sentence: str, options: Sequence[tuple[Sequence[str], str]] = ()) -> None:
        super().__init__(sentence)
        self.options = options


class Reported(Exception):
    """An ordinary failure, as the program reported it; the kinds "permanent" and "payload" are never retried.

    `after` is the delay in seconds before the next attempt, if the program asks for one; `stderr` is the end of what
    it printed in this run.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        after: float | None = None,
        traceback: str | None = None,
        stderr: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.after = after
        self.traceback = traceback
        self.stderr = stderr


class Crashed(Exception):
    """The program died with the job, or had to be killed for a violation: a crash, like a worker's death."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BadPayload(Exception):
    """The row holds what no run can use, for example invalid JSON: another attempt cannot help."""


class NotBegun(Exception):
    """The program had died before it was given the job; the attempt does not count."""


class AnyHandler(Protocol):
    """What a worker needs from a handler: a function, a class or a program.

    `loop_changed` tells that a job has changed the event loop, which it keeps for all jobs, for good.
    """

    loop_changed: bool

    def setup(self, ctx: Context) -> None: ...

    def handle(self, payload: Any, ctx: Context, /) -> Any: ...

    def teardown(self, ctx: Context) -> None: ...


class Handler:
    """A handler and its life cycle: `setup` once per worker, `handle` for each job, `teardown` at the end.

    Made from a function, or from a class with those methods. Only `handle` is required, or `handle_batch`, which is
    then used for single jobs, too. `async def`, and any awaitable that a plain function returns, runs on one event loop
    that lasts as long as the worker.
    What jobs leave on it ends with them; what `setup` has started there continues.
    With `after_interrupt` it can say that nothing goes on which an interrupted run has begun, for example on a device.
    With `check_options` it can reject the pool's options before its `setup`: by a ValueError, or by an ImportError if a
    library is missing. `middleware` is its own, called inside the pool's.
    """

    def __init__(self, target: Any, name: str) -> None:
        if isinstance(target, type):
            try:
                target = target()
            except Exception as error:
                raise HandlerError(f"{name}: making an instance failed: {error!r}") from error
            self._handle, self._handle_batch = _methods(target, name)
        elif type(target).__module__ == "supervisor.tasks":
            raise HandlerError(f"{name}: it is a task; write tasks = [{name.partition(':')[0]!r}] instead of handler")
        elif callable(target):
            self._handle, self._handle_batch = target, None
        else:
            raise HandlerError(f"{name}: it is neither a function nor a class")
        self.name = name
        self._setup = getattr(target, "setup", None)
        self._teardown = getattr(target, "teardown", None)
        self._after_interrupt = getattr(target, "after_interrupt", None)
        self._check_options = getattr(target, "check_options", None)
        self._refusal = getattr(target, "refusal", lambda type, payload: "")
        self.middleware: Sequence[Any] = getattr(target, "middleware", ())
        _check_signature(self._handle, name if self._handle_batch is None else f"{name}.handle", "payload", "ctx")
        _check_signature(self._handle_batch, f"{name}.handle_batch", "payloads", "ctx")
        for method in ("setup", "teardown", "after_interrupt"):
            _check_signature(getattr(target, method, None), f"{name}.{method}", "ctx")
        self._is_set_up = False
        self._loop: EventLoop | None = None
        self.loop_changed = False
        self.shares_loop = False  # among several runs: what is to run there must be async itself
        self.handle: Handle = self._awaited if _is_async(self._handle) else self._called

    def setup(self, ctx: Context) -> None:
        if not self._is_set_up:
            self.check_options(ctx.options)
            if self._setup is not None:
                self._finish(self._setup(ctx))

    def refusal(self, type: str, payload: Any) -> str:
        """Why no job of this type can have this payload, for people; "" if that is not known before it runs."""
        return str(self._refusal(type, payload))

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises HandlerError if the handler rejects these options."""
        if self._check_options is None:
            return
        try:
            self._check_options(options)
        except (ValueError, ImportError) as error:
            raise HandlerError(str(error), getattr(error, "faults", ())) from error

    def insist_on(self, types: Iterable[str]) -> None:
        """Raises HandlerError if it knows what types it handles, and one of these is missing."""

    def insist_on_batches(self) -> None:
        """Raises HandlerError if it cannot handle several jobs at a time."""
        if self._handle_batch is None:
            why = "a batch_size above 1 needs a class with a method handle_batch(payloads, ctx)"
            raise HandlerError(f"{self.name}: {why}")

    def handle_batch(self, payloads: list[Any], ctx: Context) -> list[Any]:
        """A result, or an exception as a value, for each job. Raises ValueError if the number differs."""
        assert self._handle_batch is not None
        values = self._handle_batch(payloads, ctx)
        if inspect.isawaitable(values):
            values = self._run(values)
        return _one_each(values, len(payloads))

    def set_up_before_fork(self, ctx: Context) -> None:
        """Set it up once for all processes forked from this one; in them `setup` does nothing.

        Raises HandlerError for an async one, because several processes would share its event loop.
        """
        self.check_options(ctx.options)
        value = None if self._setup is None or _is_async(self._setup) else self._setup(ctx)
        if _is_async(self._setup) or inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            why = "async setup cannot be run before the fork"
            raise HandlerError(f"{self.name}: {why}; make it a plain function, or write preload_setup = false")
        self._is_set_up = True

    def teardown(self, ctx: Context) -> None:
        try:
            if self._teardown is not None:
                self._finish(self._teardown(ctx))
        finally:
            if self._loop is not None:
                self._loop.close()
                self._loop = None

    def after_interrupt(self, ctx: Context) -> bool:
        """Wait until nothing goes on that an interrupted run has begun. False if the handler has no method for that."""
        if self._after_interrupt is None:
            return False
        self._finish(self._after_interrupt(ctx))
        return True

    def is_async(self, type: str) -> bool:
        """Whether a job of this type is handled by `awaitable` on the event loop, or else by `handle`."""
        return self.handle == self._awaited

    def awaitable(self, payload: Any, ctx: Context) -> Awaitable[Any]:
        """For several jobs on the event loop at the same time."""
        value: Awaitable[Any] = self._handle(payload, ctx)
        return value

    def _awaited(self, payload: Any, ctx: Context) -> Any:
        return self._run(self._handle(payload, ctx))

    def _called(self, payload: Any, ctx: Context) -> Any:
        """A plain function may return an awaitable, as a decorator that does not know `async def` does."""
        value = self._handle(payload, ctx)
        if type(value) in _RESULTS or not inspect.isawaitable(value):  # which takes a microsecond
            return value
        return self._run(value)

    def _finish(self, value: Any) -> None:
        if inspect.isawaitable(value):
            self.event_loop.run(value)

    def _run(self, awaitable: Awaitable[Any]) -> Any:
        if self.shares_loop:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise TypeError("it has returned an awaitable: in a pool with concurrency, make it an `async def`")
        loop = self.event_loop
        try:
            return loop.run_job(awaitable)
        finally:
            if loop.changed:
                self.loop_changed, loop.changed = True, False
                if loop.lost:
                    self._loop = None

    @property
    def event_loop(self) -> EventLoop:
        if self._loop is None:
            self._loop = EventLoop()
        return self._loop


def _check_signature(function: Any, name: str, *parameters: str) -> None:
    """Raises HandlerError for a generator, and for a function that does not accept this many arguments."""
    if not callable(function):
        return
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"{name}: it is a generator; it must return its result instead of yielding it")
    try:
        signature = signature_of(function)
    except Exception:  # a callable that is not written in Python may have no signature
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        raise HandlerError(f"{name}: it must take ({', '.join(parameters)})") from None


def _methods(target: Any, name: str) -> tuple[Handle, HandleBatch | None]:
    handle, handle_batch = (getattr(target, method, None) for method in ("handle", "handle_batch"))
    if not callable(handle) and not callable(handle_batch):
        raise HandlerError(f"{name}: the class has no method handle(payload, ctx)")
    batched = handle_batch if callable(handle_batch) else None
    if callable(handle):
        return handle, batched
    assert batched is not None
    return for_one_job(batched), batched


def for_one_job(handle_batch: HandleBatch) -> Handle:
    """A batch handler for one job."""

    def handle(payload: Any, ctx: Context) -> Any:
        batch = BatchContext(ctx._board, [ctx])
        try:
            return _single_result(handle_batch([payload], batch))
        finally:
            batch.end()

    async def awaited(payload: Any, ctx: Context) -> Any:
        batch = BatchContext(ctx._board, [ctx])
        try:
            return _single_result(await handle_batch([payload], batch))
        finally:
            batch.end()

    return awaited if _is_async(handle_batch) else handle


def _single_result(values: Any) -> Any:
    """What a batch handler has returned for its only job. Raises it if it is an exception."""
    [value] = _one_each(values, 1)
    if isinstance(value, BaseException):
        raise value
    return value


def _one_each(values: Any, jobs: int) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"handle_batch must return a list with a result or an exception for each job, not {values!r}")
    if len(values) != jobs:
        raise ValueError(f"handle_batch returned {len(values)} results for {jobs} job{'s' * (jobs != 1)}")
    return list(values)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an instance whose __call__ is async
    )
