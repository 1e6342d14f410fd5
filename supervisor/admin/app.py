"""The application: the routes and what they share."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.staticfiles import StaticFiles

import supervisor
from supervisor.admin import login, metrics
from supervisor.admin.api import bulk, controls, jobs, overview, run, streams
from supervisor.admin.api.answers import ANSWERED
from supervisor.admin.pages import jobs as job_pages
from supervisor.admin.pages import state as state_pages
from supervisor.admin.pages.frame import error_of, mistake_of
from supervisor.admin.rendering import STATIC
from supervisor.admin.state import AppState

TITLE = "job-supervisor"
DESCRIPTION = """Jobs, workers, pools and numbers of one database.

Every request except `GET /healthz` needs the admin token as `Authorization: Bearer …`, or, for reading, the read token;
on a Unix socket the file's permissions decide instead. A request that changes something must send `Content-Type:
application/json` if it has a body, or that of a file for `POST /run`, and, without the header `Authorization`,
`X-Requested-With: supervisor`.
Times are Unix seconds, durations seconds, sizes bytes. Errors are `{"error": "one sentence", "hint": "…"}`.
"""

# Documents the token, which the access middleware has already checked.
_TOKEN = Depends(HTTPBearer(auto_error=False, scheme_name="token", description="The admin token, or the read token."))


def make_app(state: AppState) -> FastAPI:
    """The application without the access middleware; `entry` puts that in front."""
    app = FastAPI(
        title=TITLE,
        version=supervisor.__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.state = state
    for kind in ANSWERED:
        app.add_exception_handler(kind, error_of)
    app.add_exception_handler(Exception, mistake_of)
    app.include_router(login.router)
    app.include_router(overview.open_router)
    # `bulk` comes before `jobs`: /jobs/retry is not the address of a job.
    parts = (overview.router, bulk.router, jobs.router, run.router, controls.router, controls.schedules, streams.router)
    for router in parts:
        app.include_router(router, dependencies=[_TOKEN])
    for router in (metrics.routes(), state_pages.router, job_pages.router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app
