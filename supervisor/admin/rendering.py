"""Templates to pages. Whatever comes from a row is text: every value is escaped."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

import supervisor
from supervisor.admin import charts, words

STATIC = Path(__file__).with_name("static")


def moment(at: object, now: float) -> Markup | str:
    """A <time>: how long ago, and when exactly for those who point at it."""
    stamp = words.iso(at)
    if not stamp or not isinstance(at, (int, float)):
        return words.absolute(at)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, words.absolute(at), words.age(at, now))


def stamp(at: float, now: float) -> Markup:
    """A <time> that tells the time of day, with the day if it was another one."""
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        words.iso(at), words.absolute(at), words.time_of_day(at, now)
    )


def encoded(value: object) -> str:
    """JSON for an attribute; plain text, so that it is escaped like any other."""
    return json.dumps(value, ensure_ascii=False)


def _assets() -> str:
    """A name for the static files as they are, so that a browser fetches them anew after an upgrade."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("supervisor.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "span": words.span,
        "age": words.age,
        "iso": words.iso,
        "absolute": words.absolute,
        "clock": words.clock,
        "number": words.number,
        "size": words.size,
        "percent": words.percent,
        "pretty": words.pretty,
        "final": words.final,
        "cut": words.cut,
        "timing": words.timing,
        "moment": moment,
        "stamp": stamp,
        "encoded": encoded,
    }
    environment.globals |= {
        "counted": words.counted,
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
