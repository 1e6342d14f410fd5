"""`@task`: a function whose calls can be enqueued as jobs, with the parameters of the function.

    from supervisor import task

    @task
    def resize(path: str, width: int = 800) -> dict: ...

    resize("cat.jpg")                            # calls the function
    resize.enqueue("cat.jpg", width=400)         # enqueues a job of type "resize"

Importing this module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.domain.enqueueing import JobOptions, known
from supervisor.domain.errors import QueueError
from supervisor.domain.values import checked_type, short

if TYPE_CHECKING:
    from typing import Unpack

    from supervisor.client import Queue
    from supervisor.client.asynchronous import AsyncQueue
    from supervisor.domain.limits import Conflict
    from supervisor.tasks.parameters import Parameters
    from supervisor.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "SUPERVISOR_DATABASE"
LISTENING = "SUPERVISOR_LISTEN_DATABASE"
_CONFIGURATION = "supervisor.toml"


class Call(Generic[P]):
    """A task with options, ready to be enqueued."""

    def __init__(self, task: Task[P, Any], options: Mapping[str, Any], queue: Queue | None = None) -> None:
        self._task = task
        self._options = options
        self._queue = queue

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Enqueue a call with these arguments, and return the job's id.

        The arguments are checked against the signature. Raises InvalidJob, with nothing written, if they do not fit or
        cannot be converted to JSON; StoreError if the database cannot be used.
        """
        payload = self._task.payload(*args, **kwargs)
        return (self._queue or default_queue()).enqueue(self._task.type, payload, **self._options)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """The same in asynchronous programs, in a thread of the queue, or in that of an asynchronous `connection`. With
        another `connection`, such as a sqlite3.Connection, the insert runs here and may block the event loop: only this
        thread may use it.
        """
        from supervisor.client.asynchronous import AsyncQueue

        queue = self._queue or default_queue()
        connection = self._options.get("connection")
        if connection is not None and not queue._engine.transactional.is_asynchronous(connection):
            return self.enqueue(*args, **kwargs)
        payload = self._task.payload(*args, **kwargs)
        return await AsyncQueue.of(queue).enqueue(self._task.type, payload, **self._options)


class Task(Call[P], Generic[P, R]):
    """A function and the type of its jobs. Calling it calls the function; it can be enqueued as it is, or with options.

    `type` is the type of its jobs, `function` the function itself, `declared` the options of the decorator.
    """

    def __init__(self, function: Callable[..., Any], type: str, declared: Mapping[str, Any]) -> None:
        super().__init__(self, {"priority": declared.get("priority", 0)})
        self.function = function
        self.type = type
        self.declared = declared
        functools.update_wrapper(self, function, updated=())  # its attributes stay its own

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    def options(
        self, *, connection: object = None, queue: Queue | AsyncQueue | None = None, **options: Unpack[JobOptions]
    ) -> Call[P]:
        """How the next call is enqueued; the options are those of `Queue.enqueue`.

        With `queue`, the job goes into its database instead of the default one.
        """
        known(options)
        given = {name: value for name, value in options.items() if value is not None}
        return Call(
            self, {**self._options, **given, "connection": connection}, None if queue is None else synchronous(queue)
        )

    def payload(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The payload of a job for this call, for `ctx.enqueue`, `Queue.enqueue` or SQL. Raises InvalidJob."""
        return self.parameters.payload(args, kwargs)

    @functools.cached_property
    def parameters(self) -> Parameters:
        """The function's parameters. Raises TypeError if a payload cannot hold them."""
        from supervisor.tasks.parameters import Parameters

        return Parameters(self.function, self.type)

    def __reduce__(self) -> str:
        """Pickled as the name of the function, which other processes import."""
        return self.function.__qualname__

    def __get__(self, instance: object, owner: type | None = None) -> Task[P, R]:
        return self

    def __repr__(self) -> str:
        return f"<task {self.type!r}: {_place(self)}>"


def synchronous(queue: Queue | AsyncQueue) -> Queue:
    """The queue itself, or that of an AsyncQueue. Raises TypeError for anything else."""
    from supervisor.client import Queue

    if isinstance(queue, Queue):
        return queue
    from supervisor.client.asynchronous import AsyncQueue

    if isinstance(queue, AsyncQueue):
        return queue._queue
    raise TypeError(f"queue must be a Queue or an AsyncQueue, not {short(queue)}")


@overload
def task(function: Callable[Concatenate[Context, P], R], /) -> _TaskWithContext[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    type: str | None = None,
    /,
    *,
    max_attempts: int | None = None,
    timeout: str | None = None,
    priority: int | None = None,
    retry: Mapping[str, Any] | None = None,
    give_up_on: Iterable[str] | None = None,
    on_done: str | None = None,
    on_failed: str | None = None,
    max_running: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    concurrency_per_key: int | None = None,
    on_conflict: Conflict | None = None,
    rate_per_key: str | None = None,
    burst_per_key: int | None = None,
    fair: bool | None = None,
    age_boost: str | None = None,
    breaker: Mapping[str, Any] | None = None,
) -> _Decorator: ...
def task(target: Any = None, /, **declared: Any) -> Any:
    """Make a function's calls jobs: `@task`, or `@task("images.resize", timeout="30s")`.

    The type of the jobs is the function's name, or the first argument. The other options apply to the jobs of this
    type in any pool, and `[types.NAME]` in the configuration overrides them: `max_attempts`, `timeout`
    ("30s"), `priority`, `retry` (a mapping as in the configuration), `give_up_on` (names of exceptions), `on_done` and
    `on_failed` (types of jobs that follow); and when a job may run: `max_running`, `rate` ("50/s"), `burst`,
    `concurrency_per_key`, `on_conflict`, `rate_per_key`, `burst_per_key`, `fair`, `age_boost` ("10m") and `breaker` (a
    mapping). All must be literals, since the supervisor reads them without importing the module.

    A parameter annotated as `Context` receives the run's context and is not part of the payload. Type checkers know
    that only if it is the first parameter, or has a default value.
    """
    if callable(target):
        return _register(target, None, {})
    if target is not None and not isinstance(target, str):
        raise TypeError(f"@task: the type must be a string, not {target!r}")
    unknown = set(declared) - DECLARED
    if unknown:
        raise TypeError(f"@task: {min(unknown)!r} is not an option; there are {', '.join(sorted(DECLARED))}")
    given = {name: value for name, value in declared.items() if value is not None}
    return functools.partial(_register, type=target, declared=given)


if TYPE_CHECKING:
    from typing import Protocol

    class _TaskWithContext(Task[P, R]):
        """Whose function takes the context first: a call must give one, and a job has its own."""

        def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]

    class _Decorator(Protocol):
        @overload
        def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> _TaskWithContext[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


_LIMITS = "max_running rate burst concurrency_per_key on_conflict rate_per_key burst_per_key fair age_boost breaker"
DECLARED = frozenset(
    {"max_attempts", "timeout", "priority", "retry", "give_up_on", "on_done", "on_failed", *_LIMITS.split()}
)
"""The options of the decorator; all but `priority` are also keys of `[types.NAME]`."""

registered: dict[str, Task[..., Any]] = {}
"""Every task that has been defined in this process, by its type."""


def _register(function: Callable[..., Any], type: str | None, declared: Mapping[str, Any]) -> Task[..., Any]:
    if not hasattr(function, "__qualname__"):
        raise TypeError(f"@task: {short(function)} is not a function; define one with def that calls it")
    new: Task[..., Any] = Task(function, checked_type(type or function.__name__), declared)
    old = registered.get(new.type)
    if old is not None and _source(old) != _source(new):  # a module that is imported again defines it again
        raise ValueError(
            f"{_place(new)}: the type {new.type!r} belongs to {_place(old)} already; "
            f'give one of them another, like @task("{new.function.__module__}.{new.function.__name__}")'
        )
    registered[new.type] = new
    return new


def _source(task: Task[..., Any]) -> tuple[str, str]:
    """The same for a module that also runs as a script, under another name."""
    code = getattr(inspect.unwrap(task.function), "__code__", None)
    return (task.function.__module__ if code is None else code.co_filename), task.function.__qualname__


def _place(task: Task[..., Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"


# The default queue

_guard = threading.RLock()
_queue: Queue | None = None  # the one that was configured, or that a test uses
_queues: dict[str, Queue] = {}  # the others, by their URLs


@contextlib.contextmanager
def using(queue: Queue) -> Iterator[None]:
    """Enqueue tasks there in the meantime, whatever is configured: for tests."""
    global _queue
    before, _queue = _queue, queue
    try:
        yield
    finally:
        _queue = before


def configure(url: str, *, middleware: Iterable[object] | None = None, listen_database: str | None = None) -> None:
    """Set the database into which tasks are enqueued, like "sqlite:///app.db", the middleware of its queue, and where
    it listens, if `url` is that of a pooler before PostgreSQL.

    Without it that is $SUPERVISOR_DATABASE, which workers have in their environment, else the database of the nearest
    supervisor.toml, in the current folder or above it.
    """
    global _queue
    if not isinstance(url, str):
        raise TypeError(f"configure: the database's URL must be a string, not {url!r}")
    from supervisor.client import Queue

    _queue = Queue(url, middleware=middleware, listen_database=listen_database)


def default_queue() -> Queue:
    """The queue into which tasks are enqueued. Raises QueueError if nothing names a database."""
    if _queue is not None:
        return _queue
    from supervisor.client import Queue

    with _guard:
        url, listening = os.environ.get(VARIABLE), os.environ.get(LISTENING)
        if not url:
            url, listening = _configured()
        if url not in _queues:
            _queues[url] = Queue(url, listen_database=listening or None)
        return _queues[url]


def _configured() -> tuple[str, str | None]:
    import tomllib

    from supervisor.config.checks import absolute
    from supervisor.domain.text import SQLITE_URL

    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / _CONFIGURATION
        try:
            found = tomllib.loads(file.read_text("utf-8-sig"))
            return absolute(found.get("database", SQLITE_URL), folder), found.get("listen_database")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise QueueError(f"{file}: the database's address cannot be read: {error}") from None
    raise QueueError(
        f"no database for tasks: call supervisor.configure(url), set ${VARIABLE}, "
        f"or run this in a folder with a {_CONFIGURATION}"
    )
