"""The dashboard: pages for people, rendered from what the API answers.

overview.py  the overview, with current problems
jobs.py      the list with its filters (job_query.py), one job (copies.py), and the form for a new one
failures.py  failed attempts, grouped by what went wrong
history.py   the history of some types, and the choice of a period
tables.py    workers and schedules
route.py     what every page shares, and the error pages
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from supervisor.admin.access import Visit, internal_error
from supervisor.admin.api.problems import told
from supervisor.admin.pages import failures, history, jobs, overview, tables
from supervisor.admin.pages.route import not_found, problem
from supervisor.admin.rendering import STATIC


def install(app: FastAPI) -> None:
    """Add the pages and their static files to the application."""
    for part in (overview, jobs, failures, history, tables):
        app.include_router(part.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(404, _nothing)
    app.add_exception_handler(Exception, _mistake)


async def _mistake(request: Request, error: Exception) -> Response:
    """For unexpected errors; the access middleware logs them. The framework's own answer would not pass through it."""
    if not Visit(request.scope).wants_page:
        return internal_error()
    return problem(request, 500, "Internal error of the admin process", "See its log.")


async def _nothing(request: Request, error: Exception) -> Response:
    """The answer for an unknown address."""
    return not_found(request) if Visit(request.scope).wants_page else await told(request, error)
