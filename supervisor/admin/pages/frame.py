"""What every page shares: the overview in its frame, and errors as pages."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.responses import HTMLResponse, Response

from supervisor.admin.access import internal_error, wants_page
from supervisor.admin.api.answers import answer_of
from supervisor.admin.formatting import sentence
from supervisor.admin.rendering import render
from supervisor.admin.state import may_change, state_of
from supervisor.ops.views import Overview

_TITLES = {404: "Page not found", 503: "The database cannot be used", 500: "Internal error of the admin process"}


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


async def error_of(request: Request, error: Exception) -> Response:
    """The answer to a request that has ended with one of the errors in `ANSWERED`: a page for who has asked for one."""
    answer = await answer_of(request, error)
    return _page_of(request, answer) if wants_page(request) else answer


async def mistake_of(request: Request, error: Exception) -> Response:
    """For unexpected errors; the access middleware logs them. The framework's own answer would not pass through it."""
    return _page_of(request, internal_error()) if wants_page(request) else internal_error()


def _page_of(request: Request, answer: Response) -> HTMLResponse:
    """A page that needs no database."""
    status = 404 if answer.status_code == 422 else answer.status_code
    told = json.loads(bytes(answer.body))
    text = " ".join(sentence(told[name]) for name in ("error", "hint") if name in told)
    # `//host` and `/\\host` would lead to another site.
    own = "/" + quote(request.url.path.lstrip("/\\"), safe="/")
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    return render("problem.html", status=status, title=title, text=text, path=own)
