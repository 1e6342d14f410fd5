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

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

from supervisor.admin.api import bulk, health, jobs, pools, stats, stream, workers
from supervisor.admin.api.problems import tell_problems

__all__ = ["DESCRIPTION", "install"]

DESCRIPTION = """Jobs, workers, pools and numbers of one database.

Every request but `GET /healthz` needs the admin token as `Authorization: Bearer …`, or, to look only, the read token;
on a Unix socket the file's permissions decide instead. Whatever changes something sends `Content-Type:
application/json` if it has a body, and, without the header `Authorization`, `X-Requested-With: supervisor`.
Times are Unix seconds, durations seconds, sizes bytes. Errors are `{"error": "one sentence", "hint": "…"}`.
"""

# Documents the token, which the access middleware has checked before.
_TOKEN = Depends(HTTPBearer(auto_error=False, scheme_name="token", description="The admin token, or the read token."))


def install(app: FastAPI) -> None:
    """Add the API, and what its errors look like, to the application."""
    tell_problems(app)
    # Before jobs: /jobs/retry is no job.
    app.include_router(health.router)
    for part in (
        health.behind_the_gate,
        bulk.router,
        jobs.router,
        pools.router,
        workers.router,
        stats.router,
        stream.router,
    ):
        app.include_router(part, dependencies=[_TOKEN])
