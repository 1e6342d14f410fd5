"""What every page shares: the overview in its frame, error pages, static files."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.responses import Response

from supervisor.admin.rendering import render
from supervisor.admin.state import may_change, state_of
from supervisor.domain.errors import JobNotFound, StoreBusy, StoreError
from supervisor.domain.text import MAX_NAME, text_of
from supervisor.ops.views import Overview

LONG = 60_000  # of a message, a traceback, a log

Row = TypeVar("Row")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route whose errors are also pages."""

    def get_route_handler(self) -> Handler:
        make = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await make(request)
            except RequestValidationError:
                return not_found(request)
            except HTTPException as error:
                return not_found(request, str(error.detail))
            except JobNotFound as error:
                return not_found(request, f"there is no job {error.job_id}; finished ones are deleted after a while")
            except StoreBusy:
                return problem(request, 503, "The database is busy", "Another program has held it for too long.")
            except StoreError as error:
                return problem(request, 503, "The database cannot be used", f"{error}.")

        return handler


def router() -> APIRouter:
    return APIRouter(route_class=PageRoute, default_response_class=HTMLResponse)


async def page(request: Request, template: str, overview: Overview | None = None, **values: Any) -> HTMLResponse:
    """A page of the dashboard with its frame. Raises StoreError if the database cannot be used."""
    state = state_of(request)
    shown = overview or await state.watch.overview()
    return render(
        template,
        overview=shown,
        may_change=may_change(request),
        settings=state.settings,
        may_leave=not state.keys.open,
        **values,
    )


def fitting(row: Row, *long: str) -> Row:
    """A row with its texts cut for a page: those in `long` to LONG characters, the others to NAME."""
    texts = {
        name: text_of(value, LONG if name in long else MAX_NAME)
        for name in (field.name for field in fields(row))  # type: ignore[arg-type]  # a dataclass, as all rows are
        if isinstance(value := getattr(row, name), (str, bytes)) and not isinstance(value, Enum)
    }
    return replace(row, **texts)  # type: ignore[type-var]  # the same


def not_found(request: Request, why: str = "") -> HTMLResponse:
    """The page for an unknown address."""
    return problem(request, 404, "Page not found", f"{why}." if why else "No page has this address.")


def problem(request: Request, status: int, title: str, text: str) -> HTMLResponse:
    """A page that needs no database."""
    return render("problem.html", status=status, title=title, text=text, path=own_address(request.url.path))


def own_address(path: str) -> str:
    """A path as an address on this site: `//host` and `/\\host` would lead to another site."""
    return "/" + quote(path.lstrip("/\\"), safe="/")
