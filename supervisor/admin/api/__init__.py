"""The JSON API, one file a subject.

jobs.py       list, enqueue, show, retry, cancel, delete
bulk.py       the same for all jobs that a filter means
pools.py      pools and types: look, pause, scale
workers.py    workers, schedules and everything at once
stats.py      numbers: counts, speeds, failures by cause, the last hour
stream.py     the state as server-sent events
health.py     whether this process lives, and whether the system is able to work
models.py     what is asked and answered, for the routes and for OpenAPI
documents.py  rows as answers: what may not be shown is taken out
problems.py   errors as answers
"""

from __future__ import annotations

from fastapi import FastAPI

from supervisor.admin.api import bulk, health, jobs, pools, stats, stream, workers
from supervisor.admin.api.problems import tell_problems

__all__ = ["install"]


def install(app: FastAPI) -> None:
    """Add the API, and what its errors look like, to the application."""
    tell_problems(app)
    # Before jobs: /jobs/retry is no job.
    for part in (health, bulk, jobs, pools, workers, stats, stream):
        app.include_router(part.router)
