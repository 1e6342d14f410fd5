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
    "TABLES",
    "AsyncQueue",
    "BatchNotFound",
    "BatchView",
    "Conflict",
    "Context",
    "DuplicateJob",
    "Enqueue",
    "EnqueueUncertain",
    "Fail",
    "FollowEvent",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobNotFound",
    "JobPage",
    "Progress",
    "Queue",
    "QueueError",
    "QueueFull",
    "Reason",
    "Retry",
    "Snooze",
    "Status",
    "StoreError",
    "Task",
    "WaitTimeout",
    "__version__",
    "configure",
    "task",
]

__version__ = "0.1.0"

_HOMES = {
    "AsyncQueue": "supervisor.client.asynchronous",
    "BatchView": "supervisor.store.base",
    "Context": "supervisor.worker.context",
    "Enqueue": "supervisor.domain.enqueueing",
    "FollowEvent": "supervisor.domain.job_stream",
    "Job": "supervisor.domain.job",
    "JobEvent": "supervisor.domain.job",
    "JobPage": "supervisor.client.administration",
    "Progress": "supervisor.domain.job",
    "Queue": "supervisor.client",
    "Reason": "supervisor.domain.job",
    "TABLES": "supervisor.store.moving",
    "Status": "supervisor.domain.job",
    "Task": "supervisor.tasks",
    "configure": "supervisor.tasks",
    "task": "supervisor.tasks",
}


if not TYPE_CHECKING:  # type checkers know each name; with this they would accept any other, too

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(_HOMES.get(name, "supervisor.domain.errors")), name)
        globals()[name] = value
        return value
