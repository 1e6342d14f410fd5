"""Background jobs for one machine: rows in your own database, run by a supervised pool of workers.

    from supervisor import Queue, Context, Retry, Fail

Names are loaded on first use, so that a web application that only enqueues pays for the standard
library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.client import Queue
    from supervisor.client.administration import JobPage
    from supervisor.client.asynchronous import AsyncQueue
    from supervisor.domain.enqueueing import Enqueue
    from supervisor.domain.errors import (
        BatchNotFound,
        Conflict,
        DuplicateJob,
        EnqueueUncertain,
        Fail,
        InvalidJob,
        JobFailed,
        JobNotFound,
        QueueError,
        QueueFull,
        Retry,
        Snooze,
        StoreError,
        WaitTimeout,
    )
    from supervisor.domain.job import Job, JobEvent, Progress, Reason, Status
    from supervisor.domain.job_stream import FollowEvent
    from supervisor.store.base import BatchView
    from supervisor.store.moving import TABLES
    from supervisor.tasks import Task, configure, task
    from supervisor.worker.context import Context

__all__ = [
    "TABLES", "AsyncQueue", "BatchNotFound", "BatchView", "Conflict", "Context", "DuplicateJob", "Enqueue",
    "EnqueueUncertain", "Fail", "FollowEvent", "InvalidJob", "Job", "JobEvent", "JobFailed", "JobNotFound", "JobPage",
    "Progress", "Queue", "QueueError", "QueueFull", "Reason", "Retry", "Snooze", "Status", "StoreError", "Task",
    "WaitTimeout", "__version__", "configure", "task",
]  # fmt: skip

__version__ = "0.1.0"

_HOMES = {
    "client": "Queue",
    "client.administration": "JobPage",
    "client.asynchronous": "AsyncQueue",
    "domain.enqueueing": "Enqueue",
    "domain.job": "Job JobEvent Progress Reason Status",
    "domain.job_stream": "FollowEvent",
    "store.base": "BatchView",
    "store.moving": "TABLES",
    "tasks": "Task configure task",
    "worker.context": "Context",
}


if not TYPE_CHECKING:  # type checkers know each name; with this they would accept any other, too

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        home = next((module for module, names in _HOMES.items() if name in names.split()), "domain.errors")
        value = getattr(importlib.import_module(f"supervisor.{home}"), name)
        globals()[name] = value
        return value
