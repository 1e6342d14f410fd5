"""Writes the tables of the documents that are made from the code into the pages, each below its mark, for
`make reference`.

tests/docs/test_public_names.py fails when they are not up to date.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from pydantic import BaseModel

from handlers import options
from handlers.options import PictureOptions
from supervisor.admin import metrics
from supervisor.admin.app import make_app
from supervisor.cli.program import COMMANDS, app
from supervisor.ops.views import Overview
from supervisor.system.counters import Counters

ROOT = Path(__file__).parent.parent
MARKED_TABLE = r"^<!-- {mark} -->\n(?P<rows>(?:\|.*\n)+)"

MOST = 12  # fields in a row; for more, it has a link, or the name of the schema
EVERYWHERE = ("400", "401", "403", "413", "415", "421", "422", "503")  # statuses that docs/http.md names for all routes
LINKS = {  # what says more
    "GET /api/admin/jobs": "#lists-of-jobs",
    "POST /api/admin/jobs": "#enqueueing",
    "POST /run/{type}": "#a-request-over-the-queue",
    "GET /jobs/{job_id}/events": "#follow-a-job",
    "supervisor enqueue": "enqueueing.md",
    "supervisor top": "top.md",
    "supervisor limit": "when-a-job-may-run.md#change-limits-at-run-time",
    "supervisor reload": "operating.md#deploy-new-code",
    "supervisor schedules add": "configuration.md#schedules-made-at-run-time",
    "supervisor adopt": "adopt.md",
    "supervisor move": "moving.md",
    "supervisor jobs why": "operating.md#why-does-my-job-not-run",
    "supervisor jobs batch": "when-a-job-may-run.md#when-all-of-a-group-have-ended",
}
Rows = Iterator[tuple[str, ...]]


def linked(name: str, arguments: Iterable[str] = ()) -> str:
    text = f"`{' '.join([name, *arguments])}`"
    return f"[{text}]({LINKS[name]})" if name in LINKS else text


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@functools.cache
def document() -> dict[str, Any]:
    """The description of the API; no request is made."""
    return make_app(SimpleNamespace()).openapi()  # type: ignore[arg-type]


def operations() -> dict[str, dict[str, Any]]:
    paths = document()["paths"].items()
    return {f"{method.upper()} {path}": what for path, methods in paths for method, what in methods.items()}


def fields(part: dict[str, Any]) -> list[str]:
    """The names of a body's fields, or of its events; that of the schema, if they are many."""
    of = part["content"].get("application/json") or part["content"]["text/event-stream"]
    schema = of["schema"].get("anyOf", [of["schema"]])[0]
    name = schema.get("$ref", "").rpartition("/")[2]
    found = (document()["components"]["schemas"][name] if name else schema).get("properties", {})
    names = list(found.get("event", {}).get("enum", found))
    return names if len(names) <= MOST or part.get("required") else [name]


def routes() -> Rows:
    yield "route", "does", "takes", "answers"
    for route, one in operations().items():
        sent = [each["name"] for each in one.get("parameters", []) if each["in"] != "path"]
        sent += fields(one["requestBody"]) if "requestBody" in one else []
        codes = {code: answer for code, answer in one["responses"].items() if code not in EVERYWHERE}
        answers = [f"{code}: {listed(fields(codes[code]))}" if code < "300" else code for code in codes]
        yield linked(route), one["description"], listed(sent) if len(sent) <= MOST else "see there", "; ".join(answers)


def parameters(route: str) -> Rows:
    yield "parameter", "meaning"
    yield from ((f"`{p['name']}`", p["description"]) for p in operations()[route]["parameters"] if p["in"] != "path")


def errors() -> Rows:
    yield "status", "when"
    told = {code: one["description"] for what in operations().values() for code, one in what["responses"].items()}
    yield from ((f"`{code}`", text) for code, text in sorted(told.items()) if code >= "400")


def families() -> Rows:
    yield "metric", "labels", "kind", "meaning"
    empty = Overview("", 0.0, [], [], [], {}, [], [], [], {}, [], [])
    for family in metrics._metrics(empty, metrics.Numbers(Counters(), Counter(), 0)):
        name = family.name + "_total" * (family.type == "counter")
        yield f"`{name}`", listed(getattr(family, "_labelnames", ())), family.type, family.documentation


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its full name: `status`, `jobs list`."""
    found: dict[str, Any] = {}
    root: Any = app
    for name in COMMANDS:
        command = root.get_command(None, name)
        inner = getattr(command, "commands", None)
        found.update({f"{name} {sub}": below for sub, below in inner.items()} if inner else {name: command})
    return found


def command_line() -> Rows:
    yield "command", "does"
    for name, command in commands().items():
        _, *arguments = command.collect_usage_pieces(click.Context(command))
        yield linked(f"supervisor {name}", arguments), command.help.partition("\n\n")[0]


def options_of(model: type[BaseModel]) -> Rows:
    """The options of a handler, its own first; without those of all pictures, which have a table of their own."""
    yield "option", "default", "meaning"
    shared = PictureOptions.model_fields if issubclass(model, PictureOptions) and model is not PictureOptions else ()
    for name in dict.fromkeys([*model.__annotations__, *model.model_fields]):
        if name not in shared:
            field = model.model_fields[name]
            default = field.get_default(call_default_factory=True)
            yield f"`{name}`", "none" if default is None else f"`{json.dumps(default)}`", str(field.description)


OPTIONS = [
    model
    for name, model in vars(options).items()
    if name.endswith("Options") and isinstance(model, type) and model is not options.PicturesOptions  # only tables
]
TABLES: list[tuple[str, str, Callable[[], Rows]]] = [
    ("docs/http.md", "endpoints", routes),
    ("docs/http.md", "parameters: jobs", functools.partial(parameters, "GET /api/admin/jobs")),
    ("docs/http.md", "parameters: run", functools.partial(parameters, "POST /run/{type}")),
    ("docs/http.md", "errors", errors),
    ("docs/metrics.md", "metrics", families),
    ("docs/cli.md", "commands", command_line),
    *(("docs/handlers.md", f"options: {one.__name__}", functools.partial(options_of, one)) for one in OPTIONS),
]


def shown_and_made(page: str, mark: str, rows: Callable[[], Rows]) -> tuple[str, str]:
    """The page as it is, and with the table that the code makes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    cells = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows()]
    head, *lines = (f"| {' | '.join(row)} |" for row in cells)
    found = re.search(MARKED_TABLE.format(mark=re.escape(mark)), text, re.M)
    assert found is not None, f"{page} has no table <!-- {mark} -->"
    head = f"{text[: found.start('rows')]}{head}\n{'|---' * len(cells[0])}|"
    return text, "\n".join([head, *lines, text[found.end() :]])


if __name__ == "__main__":
    for one in TABLES:
        (ROOT / one[0]).write_text(shown_and_made(*one)[1], encoding="utf-8")
