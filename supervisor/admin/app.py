"""The application: the routes, what they share, and the gate in front of them."""

from __future__ import annotations

from fastapi import FastAPI

import supervisor
from supervisor.admin import api, login, metrics, pages
from supervisor.admin.errors import tell_errors
from supervisor.admin.office import Office

TITLE = "job-supervisor"


def make_app(office: Office) -> FastAPI:
    """The application without the gate; `entry` puts that in front."""
    app = FastAPI(
        title=TITLE,
        version=supervisor.__version__,
        description=api.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.office = office
    tell_errors(app)
    app.include_router(login.router)
    api.install(app)
    app.include_router(metrics.routes())
    pages.install(app)
    return app
