"""`TasksBackend`: Django's tasks as jobs. A job's payload has the path of the task, `args` and `kwargs`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils.module_loading import import_string

from supervisor.client import Queue
from supervisor.config.checks import absolute
from supervisor.contrib.django.results import (
    DEFAULT_ALIAS,
    DEFAULT_QUEUE,
    BaseTaskBackend,
    InvalidTask,
    base,
    exceptions,
    filled,
    result_of,
    signals,
)
from supervisor.domain.enqueueing import OPTIONS
from supervisor.domain.errors import InvalidJob, JobNotFound
from supervisor.domain.job import Job
from supervisor.domain.values import checked_type

_queue_of = cache(Queue)
_KNOWN = {"database", "url", "type"}
_OPTIONS = OPTIONS.keys() - {"priority", "delay", "at"}  # Django's own are priority and run_after
# Django's OPTIONS that are the driver's own.
_OF_LIBPQ = ("service", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "options", "target_session_attrs")


def file_of(url: str) -> str:
    """The real path of a database's file."""
    return os.path.realpath(url.removeprefix("sqlite:///"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(base.Task):  # type: ignore[misc]  # Django has no types
    """A task with options of its job: `using` takes those of `Queue.enqueue` for which Django has no words."""

    options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def using(self, **changes: Any) -> Any:
        """`after` also takes results. Raises TypeError for an unknown option."""
        options = {name: changes.pop(name) for name in _OPTIONS & changes.keys()}
        task = base.Task.using(self, **changes)
        return replace(task, options={**self.options, **options}) if options else task


class TasksBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """OPTIONS: `database` is the alias of the database whose transactions tasks belong to; `url` the database of the
    jobs, if that is another one; `type` what the types of the jobs begin with, "django" if it is not given.
    """

    task_class = JobTask
    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")
        self.prefix: str = self.options.get("type", "django")

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        try:
            self.type_of(task.queue_name)
        except InvalidJob as error:
            raise InvalidTask(f"Queue {task.queue_name!r}: {error.problem}") from None

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
        """Enqueue a call as part of the open transaction.

        If the jobs are in another database than `database`, it is enqueued when that transaction has committed, and the
        result has no id until then. Raises InvalidJob for too large arguments, django.db.Error or StoreError if the
        database cannot be written.
        """
        self.validate_task(task)
        result = result_of(task, self.alias, list(args), kwargs)
        queue, connection = self.queue, self._connection()
        if self.shared():
            connection.validate_no_broken_transaction()
            connection.ensure_connection()
            with connection.wrap_database_errors:
                self._insert(result, queue, connection.connection)
        elif connection is not None and connection.in_atomic_block:
            transaction.on_commit(partial(self._insert, result, queue), using=self.database)
        else:
            self._insert(result, queue)
        return result

    def get_result(self, result_id: str) -> Any:
        """The task's result as it is now. Raises TaskResultDoesNotExist, also if retention has deleted the job."""
        try:
            return self.result_of_job(int(result_id))
        except (ValueError, JobNotFound, ImportError):
            raise exceptions.TaskResultDoesNotExist(result_id) from None

    def check(self, **kwargs: Any) -> list[Any]:
        """What `manage.py check` says of OPTIONS, and of transactions that would fail."""
        try:
            self.url()
            self.types(self.queues)
        except ImproperlyConfigured as error:
            return [checks.Error(str(error), id="supervisor.E001")]
        name, connection = self.database, self._connection()
        mode = "" if connection is None else str(connection.settings_dict["OPTIONS"].get("transaction_mode")).upper()
        if not self.shared() or connection.vendor != "sqlite" or mode in ("IMMEDIATE", "EXCLUSIVE"):
            return []
        what = f"Transactions of the database {name!r} that read before they write fail at once with"
        hint = f'Set DATABASES["{name}"]["OPTIONS"]["transaction_mode"] to "IMMEDIATE".'
        return [checks.Warning(f'{what} "database is locked" while a worker writes.', hint=hint, id="supervisor.W001")]

    def result_of_job(self, job_id: int) -> Any:
        """The result of a job. Raises JobNotFound, ImportError if the task does not exist, and ImproperlyConfigured."""
        job = self._job(job_id)
        task = self.task_of(job.type, job.payload).using(priority=job.priority)
        return filled(task, job, self.alias, self.queue.url)

    def task_of(self, type: str, payload: Any) -> Any:
        """The task that a payload names. Raises ImportError."""
        if (queue := self.queue_of(type)) is None:
            raise ImportError(f"the type {type} is not one of TASKS[{self.alias!r}]")
        if not isinstance(payload, dict) or not _is_call(**payload):
            raise ImportError('the payload must be like {"task": "orders.tasks.ship", "args": [7], "kwargs": {}}')
        task = import_string(payload["task"])
        if not isinstance(task, base.Task):
            raise ImportError(f"{payload['task']} is not a task")
        return task.using(queue_name=queue, backend=self.alias)

    def _insert(self, result: Any, queue: Queue, connection: Any = None) -> None:
        task = result.task
        payload = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        payload |= {} if self.alias == DEFAULT_ALIAS else {"backend": self.alias}
        options = dict(getattr(task, "options", {}))
        if "after" in options:
            options["after"] = [int(getattr(one, "id", one)) for one in options["after"] or ()]
        job_id = queue.enqueue(
            self.type_of(task.queue_name),
            payload,
            priority=int(task.priority),
            at=None if task.run_after is None else task.run_after.timestamp(),
            connection=connection,
            **options,
        )
        stored = queue.job(job_id, connection=connection)
        for name in ("id", "enqueued_at"):
            object.__setattr__(result, name, getattr(filled(task, stored, self.alias, queue.url), name))
        signals.task_enqueued.send(type(self), task_result=result)

    def _job(self, job_id: int) -> Job:
        """As the open transaction sees it, which may have enqueued it. Raises JobNotFound."""
        queue, connection = self.queue, self._connection()
        if connection is None or not connection.in_atomic_block or not self.shared():
            return queue.job(job_id)
        with connection.wrap_database_errors:
            return queue.job(job_id, connection=connection.connection)

    def _connection(self) -> Any:
        """Django's connection; None if the database is not configured."""
        found = self.database in connections
        return connections[self.database] if found else None

    @property
    def queue(self) -> Queue:
        """Where the jobs are. A call of it is part of the open transaction only with `connection`."""
        return _queue_of(self.url())

    # Where the jobs are: in the file of one of Django's databases, or in a database of their own

    def url(self) -> str:
        """The database of the jobs. Asked for each time: tests give Django's databases other names.

        Raises ImproperlyConfigured.
        """
        if unknown := sorted(set(self.options) - _KNOWN):
            raise self._wrong(f"{unknown[0]!r} is not an option; there are {', '.join(sorted(_KNOWN))}")
        if "url" in self.options:
            try:
                return absolute(self.options["url"], Path(getattr(settings, "BASE_DIR", "")))
            except ValueError as error:
                raise self._wrong(f"url: {error}") from None
        if self.database not in connections:
            raise self._wrong(f"DATABASES has no {self.database!r}")
        if connections[self.database].vendor == "postgresql":
            return self._server()
        if connections[self.database].vendor != "sqlite":
            raise self._wrong(
                f"the database {self.database!r} is neither SQLite nor PostgreSQL; name one for the jobs, like "
                '"url": "sqlite:///jobs.db"'
            )
        file = self._file()
        if file is None:
            raise self._wrong(
                f"the database {self.database!r} is in memory, where no worker can see it; in tests, use Django's "
                f'ImmediateBackend, or give DATABASES["{self.database}"] a file by "TEST": {{"NAME": …}}'
            )
        return f"sqlite:///{file}"

    def shared(self) -> bool:
        """Whether the jobs are in that Django database, so that they can be part of its transactions."""
        url = self.options.get("url")
        return url is None or (url.startswith("sqlite:") and file_of(self.url()) == self._file())

    def _server(self) -> str:
        """The URL of the Django database on a server, with its password."""
        settings_of = connections[self.database].settings_dict
        parts = {name: settings_of.get(name.upper()) for name in ("user", "password", "host", "port")}
        parts |= {name: value for name, value in settings_of["OPTIONS"].items() if name in _OF_LIBPQ}
        query = urlencode({name: value for name, value in parts.items() if value not in (None, "")}, quote_via=quote)
        return f"postgresql:///{quote(str(settings_of['NAME']), safe='')}{'?' if query else ''}{query}"

    def _file(self) -> str | None:
        """The real path of the Django database; None if it is no file."""
        if (connection := self._connection()) is None or connection.vendor != "sqlite":
            return None
        name = str(connection.settings_dict["NAME"])
        in_memory = ":memory:" in name or "mode=memory" in name or name.startswith("file:")
        return None if in_memory else os.path.realpath(name)

    def type_of(self, queue: str) -> str:
        """The type of the jobs of a queue. Raises InvalidJob."""
        return checked_type(self.prefix if queue == DEFAULT_QUEUE else f"{self.prefix}.{queue}")

    def queue_of(self, type: str) -> str | None:
        """The queue whose jobs have this type; None if they are not this backend's."""
        if type == self.prefix:
            return DEFAULT_QUEUE
        return type[len(self.prefix) + 1 :] if type.startswith(f"{self.prefix}.") else None

    def types(self, queues: set[str]) -> list[str]:
        """Raises ImproperlyConfigured."""
        try:
            return [self.type_of(queue) for queue in sorted(queues or {DEFAULT_QUEUE})]
        except InvalidJob as error:
            raise self._wrong(error.problem) from None

    def _wrong(self, why: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f'TASKS["{self.alias}"]: {why}')


def _is_call(task: Any = None, args: Any = (), kwargs: Any = None, **others: Any) -> bool:
    """Whether a payload, which any program may have stored, can be one of ours."""
    return isinstance(task, str) and isinstance(args, (list, tuple)) and isinstance(kwargs or {}, dict)
