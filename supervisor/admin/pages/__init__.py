"""The dashboard: pages for people, rendered from what the API answers."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from supervisor.admin.access import internal_error, wants_page
from supervisor.admin.api.answers import answer_of
from supervisor.admin.pages import jobs, state
from supervisor.admin.pages.frame import not_found, problem
from supervisor.admin.rendering import STATIC


def install(app: FastAPI) -> None:
    """Add the pages and their static files to the application."""
    for part in (state, jobs):
        app.include_router(part.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(404, _nothing)
    app.add_exception_handler(Exception, _mistake)


async def _mistake(request: Request, error: Exception) -> Response:
    """For unexpected errors; the access middleware logs them. The framework's own answer would not pass through it."""
    if not wants_page(request):
        return internal_error()
    return problem(request, 500, "Internal error of the admin process", "See its log.")


async def _nothing(request: Request, error: Exception) -> Response:
    """The answer for an unknown address."""
    return not_found(request) if wants_page(request) else await answer_of(request, error)
