"""Templates to pages. Whatever comes from a row is text: every value is escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

ENVIRONMENT = Environment(
    loader=PackageLoader("supervisor.admin"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of `templates/`."""
    return HTMLResponse(ENVIRONMENT.get_template(template).render(**values), status_code=status)
