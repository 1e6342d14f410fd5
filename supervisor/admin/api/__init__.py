"""The JSON API, one file per subject.

jobs.py       list, enqueue, show, retry, cancel, delete
run.py        enqueue a job and wait for its result, or for that of an earlier one
plain_requests.py  the same without the framework's routing
bodies.py     its body: JSON, or a file
job_events.py one job as server-sent events
bulk.py       the same for all jobs that match a filter
pools.py      pools and types: show, pause, scale
schedules.py  schedules: show, pause, run now
workers.py    workers and the overview
stats.py      numbers: counts, speeds, failures by cause, the last hour
stream.py     the state as server-sent events
health.py     whether this process is alive, and whether the system is ready
models.py     requests and answers, for the routes and for OpenAPI
documents.py  rows as answers; values that may not be shown are removed
problems.py   errors as answers
"""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

from supervisor.admin.api import bulk, health, job_events, jobs, pools, run, schedules, stats, stream, workers
from supervisor.admin.api.problems import tell_problems

DESCRIPTION = """Jobs, workers, pools and numbers of one database.

Every request except `GET /healthz` needs the admin token as `Authorization: Bearer …`, or, for reading, the read token;
on a Unix socket the file's permissions decide instead. A request that changes something must send `Content-Type:
application/json` if it has a body, or that of a file for `POST /run`, and, without the header `Authorization`,
`X-Requested-With: supervisor`.
Times are Unix seconds, durations seconds, sizes bytes. Errors are `{"error": "one sentence", "hint": "…"}`.
"""

# Documents the token, which the access middleware has already checked.
_TOKEN = Depends(HTTPBearer(auto_error=False, scheme_name="token", description="The admin token, or the read token."))


def install(app: FastAPI) -> None:
    """Add the API and its error answers to the application."""
    tell_problems(app)
    # `bulk` comes before `jobs`: /jobs/retry is not the address of a job.
    app.include_router(health.router)
    app.include_router(health.with_access_control, dependencies=[_TOKEN])
    for part in (bulk, jobs, job_events, run, pools, schedules, workers, stats, stream):
        app.include_router(part.router, dependencies=[_TOKEN])
