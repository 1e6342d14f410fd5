"""Django's tasks, those of Django 6 itself or of the package django-tasks, whose names are nearly the same; and from a
job to Django's TaskResult.
"""

from __future__ import annotations

import datetime
import re
from contextlib import closing
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from supervisor.domain.job import Attempt, Job, Run, Status
from supervisor.engine import open_engine

_own = django.VERSION >= (6,) and "django_tasks" not in settings.INSTALLED_APPS
_name = "django.tasks" if _own else "django_tasks"
try:
    tasks: Any = import_module(_name)
except ModuleNotFoundError as error:
    raise ImportError(f"Django {django.__version__} has no tasks; install the package django-tasks") from error
base: Any = import_module(f"{_name}.base")
signals: Any = import_module(f"{_name}.signals")
exceptions: Any = import_module(f"{_name}.exceptions")
BaseTaskBackend: Any = import_module(f"{_name}.backends.base").BaseTaskBackend
InvalidTask: Any = exceptions.InvalidTask if _own else exceptions.InvalidTaskError
normalize_json: Any = import_module("django.utils.json" if _own else "django_tasks.utils").normalize_json
DEFAULT_QUEUE: str = tasks.DEFAULT_TASK_QUEUE_NAME
DEFAULT_ALIAS: str = tasks.DEFAULT_TASK_BACKEND_ALIAS
TaskStatus: Any = tasks.TaskResultStatus

_STATUSES = {
    Status.PENDING: TaskStatus.READY,
    Status.HELD: TaskStatus.READY,
    Status.RUNNING: TaskStatus.RUNNING,
    Status.DONE: TaskStatus.SUCCESSFUL,
}  # all others: FAILED
_CLASSES = {
    "permanent": "supervisor.Fail",
    "retry": "supervisor.Retry",
    "result": "builtins.TypeError",
    "payload": "builtins.TypeError",
    "timeout": "builtins.TimeoutError",
    "memory": "builtins.MemoryError",
    "exit": "builtins.SystemExit",
}
_CLASS = re.compile(r"^([^\W\d][\w.]*)(?::|$)", re.M)


def filled(task: Any, job: Job, alias: str, url: str) -> Any:
    """The result of a task, which is that of the job."""
    failures: list[Attempt] = []
    runs: list[Run] = []
    if job.status.finished or job.attempts > 1 or job.last_error is not None:
        failures, runs = _history(job.id, url)
    if not job.attempts and job.scheduled_at != job.created_at:
        task = task.using(run_after=moment(job.scheduled_at))
    result = result_of(
        task,
        alias,
        job.payload.get("args", []),
        job.payload.get("kwargs", {}),
        id=str(job.id),
        status=_STATUSES.get(job.status, TaskStatus.FAILED),
        enqueued_at=moment(job.created_at),
        started_at=moment(min((run.started_at for run in runs), default=job.started_at)),
        finished_at=moment(job.completed_at) if job.status.finished else None,
        last_attempted_at=moment(job.started_at),
        errors=[_error(one) for one in failures],
        worker_ids=_workers(job, failures, runs),
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def result_of(task: Any, alias: str, args: Any, kwargs: Any, **known: Any) -> Any:
    """The result of a call; what is not known is that of a job that is not stored yet."""
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    nothing = {"id": "", "status": TaskStatus.READY, "errors": [], "worker_ids": [], **times}
    return base.TaskResult(**{**nothing, "task": task, "backend": alias, "args": args, "kwargs": kwargs, **known})


def moment(seconds: Any) -> datetime.datetime | None:
    """A time as the settings want it, from Unix seconds; None for anything else, which other programs may store."""
    if not isinstance(seconds, (int, float)):
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC if settings.USE_TZ else None)


def _history(job_id: int, url: str) -> tuple[list[Attempt], list[Run]]:
    with closing(open_engine(url).operations()) as operations:
        return operations.jobs.attempts(job_id), operations.jobs.runs(job_id)


def _workers(job: Job, failures: list[Attempt], runs: list[Run]) -> list[str]:
    """A name for each attempt: short runs that succeed leave no row with one."""
    seen: list[Attempt | Run] = [*failures, *runs]
    names = {one.attempt: one.worker for one in seen if one.worker}
    if job.locked_by:
        names[job.attempts] = job.locked_by
    return [names.get(attempt, "unknown") for attempt in range(1, job.attempts + 1)]


def _error(failure: Attempt) -> Any:
    """What no exception has ended, such as a crash, has a class of ours."""
    found = _CLASS.search(failure.message) if failure.kind == "exception" else None
    path = found[1] if found else _CLASSES.get(failure.kind, "supervisor.QueueError")
    path = path if "." in path else f"builtins.{path}"
    return base.TaskError(exception_class_path=path, traceback=failure.traceback or failure.message)
