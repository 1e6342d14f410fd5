"""The application: the routes and what they share."""

from __future__ import annotations

from fastapi import FastAPI

import supervisor
from supervisor.admin import api, login, metrics, pages
from supervisor.admin.state import AppState

TITLE = "job-supervisor"


def make_app(state: AppState) -> FastAPI:
    """The application without the access middleware; `entry` puts that in front."""
    app = FastAPI(
        title=TITLE,
        version=supervisor.__version__,
        description=api.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.state = state
    app.include_router(login.router)
    api.install(app)
    app.include_router(metrics.routes())
    pages.install(app)
    return app
