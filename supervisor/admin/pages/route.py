"""What every page has: the state of everything at its edge, and a page of ours when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.responses import Response

from supervisor.admin.office import may_change, office_of
from supervisor.admin.rendering import render
from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.status import Overview

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route whose errors are pages as well."""

    def get_route_handler(self) -> Handler:
        make = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await make(request)
            except RequestValidationError:
                return not_found(request)
            except HTTPException as error:
                return not_found(request, str(error.detail))
            except StoreBusy:
                return problem(request, 503, "The database is busy", "Another program has held it for too long.")
            except StoreError as error:
                return problem(request, 503, "The database cannot be used", f"{error}.")

        return handler


def router() -> APIRouter:
    return APIRouter(route_class=PageRoute, default_response_class=HTMLResponse)


async def page(request: Request, template: str, overview: Overview | None = None, **values: Any) -> HTMLResponse:
    """A page of the dashboard with its frame. Raises StoreError if the database cannot be used."""
    office = office_of(request)
    shown = overview or await office.watch.overview()
    return render(
        template,
        overview=shown,
        may_change=may_change(request),
        settings=office.settings,
        may_leave=not office.keys.open,
        **values,
    )


def not_found(request: Request, why: str = "") -> HTMLResponse:
    """The page for an address under which there is nothing."""
    return problem(request, 404, "There is nothing here", f"{why}." if why else "No page has this address.")


def problem(request: Request, status: int, title: str, text: str) -> HTMLResponse:
    """A page that needs no database."""
    return render("problem.html", status=status, title=title, text=text, path=request.url.path)
