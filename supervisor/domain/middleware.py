"""Middleware: code of the application, or of `supervisor.contrib`, that is called around runs and enqueues.

A middleware is an object with any of these methods:

    on_enqueue(job)             before a job is inserted: an EnqueuedJob, whose `meta` it may change
    setup(worker)               once in each worker, after its fork and before the set-up of the handler: a WorkerInfo
    around_run(call, ctx)       around each run: it calls `call()` and returns its result
    on_failure(job, error)      after an attempt that has failed: a FailedJob and the exception
    teardown(worker)            once in each worker, before it leaves

An error of a middleware is reported and harms no job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from supervisor.domain.job import AlikeJobs, NewJob, NewJobs
from supervisor.domain.values import json_object

HOOKS = ("on_enqueue", "setup", "around_run", "on_failure", "teardown")


class MiddlewareError(ValueError):
    """A middleware cannot be used; one sentence says why."""


class Middleware(NamedTuple):
    """An object with hooks, and its name in messages."""

    name: str
    target: Any

    def hook(self, name: str) -> Callable[..., Any] | None:
        return getattr(self.target, name, None)


@dataclass(slots=True)
class EnqueuedJob:
    """A job that is about to be inserted. Only `meta` may be changed: it is stored with the job, as JSON."""

    type: str
    payload: Any
    priority: int
    unique_key: str | None
    meta: dict[str, Any]


class WorkerInfo(NamedTuple):
    """The worker in which a middleware is set up. `log` is a structlog logger."""

    pool: str
    name: str
    log: Any


class FailedJob(NamedTuple):
    """A failed attempt. `final`: there is no other one, unless somebody retries the job. `kind` and `message` are those
    of `job_errors` (docs/internals/schema.md); `delay` is seconds until the next attempt.
    """

    id: int
    type: str
    attempt: int
    pool: str
    worker: str
    final: bool
    kind: str
    message: str
    delay: float


def load(names: Iterable[Any]) -> list[Middleware]:
    """From "module:attribute" to objects. Anything that is not text is taken as it is; a class is instantiated.

    Raises MiddlewareError.
    """
    return [_loaded(name) for name in names]


def _loaded(given: Any) -> Middleware:
    target = _imported(given) if isinstance(given, str) else given
    name = given if isinstance(given, str) else type(given).__name__
    if isinstance(target, type):
        name = given if isinstance(given, str) else target.__name__
        try:
            target = target()
        except Exception as error:
            raise MiddlewareError(f"{name}: making an instance failed: {type(error).__name__}: {error}") from error
    if not any(callable(getattr(target, hook, None)) for hook in HOOKS):
        raise MiddlewareError(f"{name}: it has none of the methods {', '.join(HOOKS)}")
    return Middleware(name, target)


def _imported(name: str) -> Any:
    if not all(name.partition(":")):
        raise MiddlewareError(f'{name!r} is not a middleware; write module:attribute, like "tracing:Tracing"')
    import pkgutil  # few programs have a middleware

    try:
        return pkgutil.resolve_name(name)
    except Exception as error:
        raise MiddlewareError(f"{name}: importing it failed: {type(error).__name__}: {error}") from error


Report = Callable[[str, str, BaseException], None]
"""Takes an error: the middleware, its hook, the exception."""


def _log_error(name: str, hook: str, error: BaseException) -> None:
    """In a program that enqueues: the standard library's logging."""
    import logging

    logging.getLogger("supervisor.middleware").error("%s.%s failed: %r", name, hook, error, exc_info=error)


class EnqueueHooks:
    """The middleware that is called when jobs are enqueued."""

    def __init__(self, middleware: Iterable[Middleware], report: Report = _log_error) -> None:
        self._hooks = [(one.name, hook) for one in middleware if callable(hook := one.hook("on_enqueue"))]
        self._report = report

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def applied(self, jobs: NewJobs) -> NewJobs:
        """The jobs with the meta that the hooks have set."""
        if not self._hooks:
            return jobs
        return [self.apply(job) for job in (jobs.each() if isinstance(jobs, AlikeJobs) else jobs)]

    def apply(self, job: NewJob) -> NewJob:
        payload = json.loads(job.payload)
        for name, hook in self._hooks:
            meta = json.loads(str(job.extra.get("meta", "{}")))
            shown = EnqueuedJob(job.type, payload, job.priority, job.unique_key, meta)
            try:
                hook(shown)
                text = json_object("meta", shown.meta)
                others = {name: value for name, value in job.extra.items() if name != "meta"}
                job = job._replace(extra=others | ({} if text is None else {"meta": text}))
            except Exception as error:
                self._report(name, "on_enqueue", error)
        return job


NO_HOOKS = EnqueueHooks(())
_of_worker = NO_HOOKS


def hooks_of_process() -> EnqueueHooks:
    """What a Queue without middleware of its own uses: in a worker that of its pool, elsewhere nothing."""
    return _of_worker


def set_for_process(hooks: EnqueueHooks) -> None:
    global _of_worker
    _of_worker = hooks
