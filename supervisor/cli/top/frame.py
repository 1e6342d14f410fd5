"""The whole screen as lines that fit a given width and height."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.cli.columns import COLOURS
from supervisor.cli.tables import span
from supervisor.cli.top.panes import NAMES, Pane, Row, most_interesting, panes
from supervisor.cli.top.poller import Seen
from supervisor.cli.top.view import Panes, View
from supervisor.domain.printable import CELL, clean
from supervisor.ops.diagnosis import Finding, diagnose
from supervisor.ops.views import Overview

NARROWEST, LOWEST = 40, 10
STALE = 3.0  # seconds after which what is shown counts as old
_NAME_WIDTH = 20  # cells of a name; capabilities and handlers may be longer
_KEYS = "q quit  ? help  Tab pane  ↑↓ select  p pause  +-a size  r retry  c cancel"
_HELP = """\
↑ ↓, j k          select a row
Tab, Shift-Tab    next pane, previous pane
p                 pause the selected pool's types, or the selected type;
                  press it again to resume
+ -               one worker more or less for the selected pool
7 Enter           set its number of workers, here 7
a                 return it to automatic scaling
r                 retry the failed and quarantined jobs of the selected type or
                  pool; asks
c                 cancel the job of the selected worker; asks
q, Ctrl-C         quit

If there is no room for every row, the most important are shown: those that
are broken or paused, have waited or run longest, or fail.

Press any key to close this help."""


def lines(seen: Seen, view: View, width: int, height: int, now: float) -> list[str]:
    """The screen as ANSI text, one a line. `now` is monotonic seconds."""
    if width < NARROWEST or height < LOWEST:
        return _rendered([Text(f"too small: at least {NARROWEST} × {LOWEST} needed")], width, height)
    top = _head(seen, now)
    bottom = [_line(_last(view), "bold" if view.question or view.typed else ""), _line(_KEYS, "dim")]
    body: list[RenderableType] = []
    if view.help:
        body = [Text(""), Text(_HELP, overflow="fold")]
    elif seen.overview is not None:
        body = _body(panes(seen.overview, seen.failures), view, height - len(top) - len(bottom))
    upper = _rendered([*top, *body], width, height - len(bottom))
    upper += [""] * (height - len(bottom) - len(upper))
    return upper + _rendered(bottom, width, len(bottom))


def _head(seen: Seen, now: float) -> list[Text]:
    overview = seen.overview
    if overview is None:
        return [_line("job-supervisor", "bold"), _line(seen.trouble or "loading …", "red" if seen.trouble else "")]
    findings = diagnose(overview)
    found = [_summary(overview), _supervisors(overview, findings)]
    old = now - seen.at
    if seen.trouble or old > STALE:
        found.append(_line(f"{span(old)} old: {seen.trouble or 'the database does not answer'}", "bold red"))
    waiting = "; ".join(finding.fact for finding in findings if finding.name in ("unhandled", "unmet"))
    return [*found, _line(waiting, "yellow")] if waiting else found


def _summary(overview: Overview) -> Text:
    database = overview.database.removeprefix("sqlite:///").rpartition("/")[2]
    counts = "  ".join(f"{count:,} {state}" for state, count in overview.jobs.items() if count)
    clock = time.strftime("%H:%M:%S", time.localtime(overview.time))
    return _line(f"{clock}  {database}  {counts or 'no jobs'}", "bold")


def _supervisors(overview: Overview, findings: Iterable[Finding]) -> Text:
    # What is wrong comes first: a line has room for two or three.
    wrong = [finding for finding in findings if finding.about == "supervisors" or finding.name == "ended"]
    if not overview.supervisors:
        return _line("; ".join(f"{finding.fact}; {finding.advice}" for finding in wrong), "red")
    living = sorted((one for one in overview.supervisors if one.alive is not False), key=lambda one: one.started_at)
    up = [f"supervisor {one.pid}, up {span(max(0.0, overview.time - one.started_at))}" for one in living]
    style = "red" if any(finding.level != "note" or finding.name == "ended" for finding in wrong) else ""
    return _line("; ".join([*(finding.fact for finding in wrong), *up]), style)


def _body(found: Panes, view: View, room: int) -> list[RenderableType]:
    """Each pane is an empty line, its column names and rows, and a line that counts the rows left out."""
    shares = share([len(found[name].rows) for name in NAMES], room - 2 * len(NAMES))
    body: list[RenderableType] = []
    for name, lines_ in zip(NAMES, shares, strict=True):
        body.append(Text(""))
        body += _pane(found[name], view, lines_)
    return body


def share(wants: list[int], room: int) -> list[int]:
    """Give each what it wants, or an equal share of the room; what one does not need goes to the others."""
    given = [0] * len(wants)
    while room > 0 and given != wants:
        hungry = [index for index, want in enumerate(wants) if given[index] < want]
        for index in hungry[:room]:
            given[index] += 1
        room -= len(hungry)
    return given


def _pane(pane: Pane, view: View, room: int) -> list[RenderableType]:
    selected = view.row({pane.name: pane}, pane.name)
    key = "" if selected is None else selected.key
    here = pane.name == view.pane
    whole = len(pane.rows) <= room
    shown = pane.rows if whole else most_interesting(pane.rows, room - 1, key)
    columns = (f"{'▸' if here else ' '}{pane.columns[0]}", *pane.columns[1:])
    grid = _table(columns, [_cells(row, row.key == key) for row in shown])
    for row, drawn in zip(shown, grid.rows, strict=True):
        drawn.style = "reverse" if here and row.key == key else row.style
    if whole:
        return [grid]
    more = f"  … and {len(pane.rows) - len(shown)} more {pane.name}"
    return [grid, _line(more, "dim")] if room else [grid]


def _cells(row: Row, selected: bool) -> tuple[str, ...]:
    name = Text(row.cells[0])
    name.truncate(_NAME_WIDTH, overflow="ellipsis")
    return (f"{'›' if selected else ' '}{name.plain}", *row.cells[1:])


def _last(view: View) -> str:
    if view.question is not None:
        return f"{view.question.text} y/n"
    if view.typed:
        return f"workers: {view.typed}▏ Enter confirms, Escape cancels"
    return view.message


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table like those of the other commands, but each row can have a style."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold")
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        right = name.endswith(">") and not last
        justify: Literal["left", "right"] = "right" if right else "left"
        grid.add_column(name.rstrip(">").upper(), justify=justify, no_wrap=True, ratio=1 if last else None)
    for row in rows:
        grid.add_row(*(Text(cell := clean(value, limit=CELL), style=COLOURS.get(cell, "")) for value in row))
    return grid


def _line(text: str, style: str = "") -> Text:
    return Text(clean(text, " ", limit=CELL), style=style, no_wrap=True, overflow="ellipsis")


def _rendered(parts: Sequence[RenderableType], width: int, height: int) -> list[str]:
    buffer = io.StringIO()
    console = Console(
        file=buffer, force_terminal=True, width=width, markup=False, highlight=False, emoji=False, legacy_windows=False
    )
    for part in parts:
        if isinstance(part, Text) and part.no_wrap:  # printing would not cut it
            part.truncate(width, overflow="ellipsis")
        console.print(part)
    return buffer.getvalue().splitlines()[:height]
