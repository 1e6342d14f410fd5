"""Renders templates. Every value is escaped."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

import supervisor
from supervisor.admin import charts, formatting
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import checked_type
from supervisor.domain.text import final_lines, text_of

_LONGEST = 100_000  # characters of any one value
_LONGEST_QUERY = 500
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


def encoded(value: object) -> str:
    """JSON for an attribute; plain text, so that it is escaped like any other."""
    return json.dumps(value, ensure_ascii=False)


def query(value: object) -> str:
    """A value encoded for an address, in the query or as one segment of the path."""
    return quote(text_of(value, _LONGEST_QUERY).encode("utf-8", "replace"), safe="")


def nameable(type_: str) -> bool:
    """Whether a type can be part of an address. Invalid types, which other programs may store, get no buttons."""
    try:
        return checked_type(type_).strip(".") != ""  # a browser would resolve a segment of dots
    except InvalidJob:
        return False


def segment(name: str) -> bool:
    """Whether a name is one that a schedule can have, so that it can be part of an address of the API."""
    return re.fullmatch(r"[a-z0-9_.-]{1,100}", name) is not None and name.strip(".") != ""


def _finalize(value: Any) -> Any:
    """Limits the length of every text in a template, even without a filter."""
    if isinstance(value, Markup) or not isinstance(value, (str, bytes)):
        return value
    return text_of(value, _LONGEST).encode("utf-8", "replace").decode()


def _assets() -> str:
    """A name for the current static files, so that browsers fetch them again after an upgrade."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("supervisor.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = (
        formatting.span,
        formatting.iso,
        formatting.local,
        formatting.number,
        formatting.size,
        formatting.percent,
    )
    texts = (formatting.pretty, formatting.brief, formatting.cut, formatting.timing, formatting.sentence, final_lines)
    own = (moment, shown, with_code, encoded, query, nameable, segment)
    environment.filters |= {each.__name__: each for each in (*numbers, *texts, *own)}
    environment.globals |= {
        "counted": formatting.counted,
        "charts": charts,
        "assets": _assets(),
        "version": supervisor.__version__,
        "now": time.time,
    }
    return environment


ENVIRONMENT = _environment()


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of `templates/`."""
    return HTMLResponse(ENVIRONMENT.get_template(template).render(**values), status_code=status)
