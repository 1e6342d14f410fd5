"""The handler of a pool for Django's tasks: `handler = "supervisor.contrib.django.worker:Tasks"`.

Importing this module sets Django up and imports every `tasks` module of the installed apps: in the template, before
workers are forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import django
from asgiref.sync import AsyncToSync, ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, reset_queries
from django.utils.module_loading import autodiscover_modules

from supervisor.domain.errors import Fail, InvalidJob
from supervisor.domain.middleware import FailedJob
from supervisor.domain.text import without_password
from supervisor.tasks.parameters import signature_of
from supervisor.worker.context import Context

if not os.environ.get("DJANGO_SETTINGS_MODULE"):
    raise ImproperlyConfigured('add env = { DJANGO_SETTINGS_MODULE = "….settings" } to the pool')
if not apps.ready:
    django.setup()
autodiscover_modules("tasks")

from supervisor.contrib.django import TasksBackend  # noqa: E402 - it needs the settings
from supervisor.contrib.django.backend import file_of  # noqa: E402
from supervisor.contrib.django.results import (  # noqa: E402
    DEFAULT_ALIAS,
    InvalidTask,
    TaskStatus,
    base,
    moment,
    normalize_json,
    signals,
    tasks,
)

connections.close_all()  # what an app has opened while it was loaded: workers must not inherit it

_running = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(base.TaskContext):  # type: ignore[misc]  # Django has no types
    """What a task with `takes_context` receives. `job` is our own context: progress, cancelled, extend, log."""

    job: Context


class Signals:
    """Sends task_finished when a task has failed for good; `Tasks` brings it along."""

    def on_failure(self, job: FailedJob, error: BaseException) -> None:
        result, _running.result = getattr(_running, "result", None), None
        if job.final and result is not None and result.id == str(job.id):
            stack = "".join(traceback.format_exception(error))
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            result.errors.append(base.TaskError(exception_class_path=path, traceback=stack))
            _finish(result, TaskStatus.FAILED)


class Tasks:
    """Runs the task that a job's payload names."""

    middleware = (Signals,)

    def check_options(self, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"the handler of Django's tasks has no options, so none named {min(options)!r}")
        url = os.environ.get("SUPERVISOR_DATABASE")
        try:
            urls = [backend.url() for backend in _ours()]
        except ImproperlyConfigured as error:
            raise ValueError(str(error)) from None
        if not urls:
            raise ValueError("TASKS of Django's settings has no supervisor.contrib.django.TasksBackend")
        if url and not any(_same(one, url) for one in urls):
            theirs = ", ".join(map(without_password, urls))
            raise ValueError(
                f"Django's tasks are enqueued into {theirs}, but this supervisor's jobs are in {without_password(url)}"
            )

    def refusal(self, type: str, payload: Any) -> str:
        try:
            task = _backend_of(payload).task_of(type, payload)
            _bound(task, [None, *payload.get("args", ())][not task.takes_context :], payload.get("kwargs") or {})
        except (Fail, ImportError, ImproperlyConfigured, InvalidTask) as error:
            return str(error)
        return ""

    def handle(self, payload: Any, ctx: Context) -> Any:
        # In a context of its own: what a task activates, such as a language, does not affect the next one.
        return copy_context().run(_run, payload, ctx)


def _same(*urls: str) -> bool:
    """Whether both may be one database. On servers, only its name counts: hosts have several, a pooler another one."""
    names = [unquote(urlsplit(url).path[1:]) if url.startswith("postgres") else file_of(url) for url in urls]
    return names[0] == names[1] or "" in names  # which is that of a service


def _ours() -> Iterator[TasksBackend]:
    for alias in tasks.task_backends:
        with contextlib.suppress(ImproperlyConfigured):  # another one, of which Django tells
            if isinstance(backend := tasks.task_backends[alias], TasksBackend):
                yield backend


def _backend_of(payload: Any) -> TasksBackend:
    alias = payload.get("backend", DEFAULT_ALIAS) if isinstance(payload, dict) else DEFAULT_ALIAS
    if not isinstance(backend := tasks.task_backends[alias], TasksBackend):
        raise Fail(f'TASKS["{alias}"] is not a backend of job-supervisor')
    return backend


def _run(payload: Any, ctx: Context) -> Any:
    reset_queries()
    close_old_connections()
    try:
        backend = _backend_of(payload)
        try:
            result = _running.result = backend.result_of_job(ctx.job_id)
        except ImportError as error:
            raise Fail(str(error)) from None
        args = [JobContext(task_result=result, job=ctx)] if result.task.takes_context else []
        call = _bound(result.task, [*args, *result.args], result.kwargs)
        signals.task_started.send(type(backend), task_result=result)
        value = call()
        try:
            value = normalize_json(value)
        except TypeError as error:
            raise InvalidJob("result", str(error)) from error
        object.__setattr__(result, "_return_value", value)
        _finish(result, TaskStatus.SUCCESSFUL)
        return value
    finally:
        close_old_connections()


def _bound(task: Any, args: list[Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call. Arguments that do not fit fail at once: another attempt would not help."""
    try:
        signature_of(task.func).bind(*args, **kwargs)
    except TypeError as error:
        raise Fail(f"{task.module_path}: {error}") from None
    inside = getattr(AsyncToSync.executors, "current", None) is not None  # of a test that is itself asynchronous
    if inspect.iscoroutinefunction(task.func) and not inside:
        return lambda: asyncio.run(_awaited(task.func(*args, **kwargs)))
    return lambda: task.call(*args, **kwargs)


async def _awaited(coroutine: Any) -> Any:
    """Its synchronous parts, such as queries, run in a thread that ends with it, and with the thread's connections.

    Not Django's async_to_sync: that waits for the coroutine even when the job is to stop.
    """
    async with ThreadSensitiveContext():
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()


def _finish(result: Any, status: Any) -> None:
    object.__setattr__(result, "finished_at", moment(time.time()))
    object.__setattr__(result, "status", status)
    signals.task_finished.send(type(tasks.task_backends[result.backend]), task_result=result)
