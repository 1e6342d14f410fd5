"""Pages: templates, in which every value is escaped; the overview in the frame of each; errors."""

from __future__ import annotations

import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

import supervisor
from supervisor.admin import charts, formatting
from supervisor.admin.access import wants_page
from supervisor.admin.answers import refusal_of
from supervisor.admin.state import may_change, state_of
from supervisor.domain.errors import InvalidJob
from supervisor.domain.text import final_lines, text_of
from supervisor.domain.values import checked_type
from supervisor.ops.views import Overview, by_gate

_LONGEST = 60_100  # characters of any one value; `cut` says how much is missing
_LONGEST_QUERY = 500
_TITLES = {404: "Page not found", 503: "The database cannot be used", 500: "Internal error of the admin process"}
STATIC = Path(__file__).with_name("static")


def moment(at: object, now: float) -> Markup | str:
    """A <time> that shows the age, with the exact time as a tooltip."""
    if not formatting.iso(at) or not isinstance(at, (int, float)):
        return formatting.absolute(at)
    return _time(at, "age", formatting.age(at, now))


def shown(at: float, shows: str) -> Markup:
    """A <time> that shows one of `formatting.SHOWN`."""
    return _time(at, shows, formatting.local(at, shows))


def _time(at: float, shows: str, text: str) -> Markup:
    """What it shows, and its tooltip, are put into the browser's time zone by live.js."""
    return Markup('<time datetime="{}" title="{}" data-show="{}">{}</time>').format(
        formatting.iso(at), formatting.absolute(at), shows, text
    )


def with_code(text: str) -> Markup:
    """What stands between backticks as code, the rest as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick of somebody else's text
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def query(value: object) -> str:
    """A value encoded for an address, in the query or as one segment of the path."""
    return quote(text_of(value, _LONGEST_QUERY).encode("utf-8", "replace"), safe="")


def nameable(name: str) -> bool:
    """Whether a type or a schedule can be part of an address. Other programs may store names that get no buttons."""
    try:
        return checked_type(name).strip(".") != ""  # a browser would resolve a segment of dots
    except InvalidJob:
        return False


def _finalize(value: Any) -> Any:
    """Limits the length of every text in a template, even without a filter."""
    if isinstance(value, Markup) or not isinstance(value, (str, bytes)):
        return value
    return text_of(value, _LONGEST).encode("utf-8", "replace").decode()


ENVIRONMENT = Environment(
    loader=PackageLoader("supervisor.admin"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NAMES = ("span", "iso", "local", "number", "size", "percent", "pretty", "brief", "cut", "timing", "sentence")
ENVIRONMENT.filters |= {name: getattr(formatting, name) for name in _NAMES}
ENVIRONMENT.filters |= {own.__name__: own for own in (moment, shown, with_code, query, nameable, final_lines, by_gate)}
ENVIRONMENT.globals |= {
    "counted": formatting.counted,
    "charts": charts,
    "version": supervisor.__version__,
    "now": time.time,
}


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of `templates/`."""
    return HTMLResponse(ENVIRONMENT.get_template(template).render(**values), status_code=status)


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
    """The answer to a request that has ended with an error: a page for who has asked for one, which needs no database.
    The access middleware logs unexpected errors; the framework's own answer would not pass through it.
    """
    refusal = refusal_of(request, error)
    if not wants_page(request):
        return refusal.response()
    status = 404 if refusal.status_code == 422 else refusal.status_code
    text = " ".join(formatting.sentence(refusal.content[name]) for name in ("error", "hint") if name in refusal.content)
    # `//host` and `/\\host` would lead to another site.
    own = "/" + quote(request.url.path.lstrip("/\\"), safe="/")
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    return render("problem.html", status=status, title=title, text=text, path=own)
