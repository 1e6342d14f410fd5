"""The application: the routes and what they share."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

import supervisor
from supervisor.admin import login, metrics, pages
from supervisor.admin.api import answers, bulk, controls, jobs, overview, run, streams
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
    answers.install(app)
    app.include_router(login.router)
    app.include_router(overview.open_router)
    # `bulk` comes before `jobs`: /jobs/retry is not the address of a job.
    parts = (overview.router, bulk.router, jobs.router, run.router, controls.router, controls.schedules, streams.router)
    for router in parts:
        app.include_router(router, dependencies=[_TOKEN])
    app.include_router(metrics.routes())
    pages.install(app)
    return app
