"""The whole screen as lines that fit a given width and height."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from supervisor.cli.columns import COLOURS
from supervisor.cli.tables import span
from supervisor.cli.top.help import help_page, key_line
from supervisor.cli.top.panes import NAMES, SPARED, Pane, Row, around, most_interesting, panes
from supervisor.cli.top.poller import Seen
from supervisor.cli.top.side import LEAST, log_lines, side
from supervisor.cli.top.view import Panes, View
from supervisor.domain.text import MAX_CELL, clean
from supervisor.ops.diagnosis import Finding, diagnose
from supervisor.ops.views import Overview

NARROWEST, LOWEST = 40, 10
STALE = 3.0  # seconds after which what is shown counts as old
_LOW = 18  # lines below which only one pane is shown, below a short header
_WIDE, _TABLES = 140, 90  # cells from which a column is beside the tables, and those that the tables keep
_GAP = 3  # cells between them
_NAME_WIDTH = 20  # cells of a name; capabilities and handlers may be longer
_LAST_WIDTH = 12  # cells that the last column of a table should have


def lines(seen: Seen, view: View, width: int, height: int, now: float) -> list[str]:
    """The screen as ANSI text, one a line. `now` is monotonic seconds."""
    if width < NARROWEST or height < LOWEST:
        return _rendered([Text(f"too small: at least {NARROWEST} × {LOWEST} needed")], width, height)
    low = height < _LOW
    top = _head(seen, now, width, short=low)
    bottom = _bottom(view, width, short=low)
    room = height - len(top) - len(bottom)
    body: list[RenderableType] = []
    if view.help:
        body = [Text(help_page(width, room), overflow="fold")]
    elif seen.overview is not None:
        body = _body(seen, panes(seen.overview, seen.failures), view, width, room)
    upper = _rendered([*top, *body], width, height - len(bottom))
    upper += [""] * (height - len(bottom) - len(upper))
    return upper + _rendered(bottom, width, len(bottom))


# Above and below


def _head(seen: Seen, now: float, width: int, *, short: bool) -> list[Text]:
    """A short one has one line, and one more for what is wrong."""
    overview = seen.overview
    if overview is None:
        return [_line("job-supervisor", "bold"), _line(seen.trouble or "loading …", "red" if seen.trouble else "")]
    findings = diagnose(overview)
    wrong = []
    old = now - seen.at
    if seen.trouble or old > STALE:
        wrong.append(_line(f"{span(old)} old: {seen.trouble or 'the database does not answer'}", "bold red"))
    supervisors = _supervisors(overview, findings)
    waiting = "; ".join(finding.fact for finding in findings if finding.name in ("unhandled", "unmet"))
    waits = [_line(waiting, "yellow")] if waiting else []
    if short:
        return [_summary(overview, width), *[*wrong, *([supervisors] if supervisors.style else []), *waits][:1]]
    return [_summary(overview, width), supervisors, *wrong, *waits]


def _summary(overview: Overview, width: int) -> Text:
    """As much as fits: the clock and the database are the first to go."""
    database = overview.database.removeprefix("sqlite:///").rpartition("/")[2]
    counts = "  ".join(f"{count:,} {state}" for state, count in overview.jobs.items() if count) or "no jobs"
    clock = time.strftime("%H:%M:%S", time.localtime(overview.time))
    for text in (f"{clock}  {database}  {counts}", f"{clock}  {counts}"):
        if cell_len(clean(text)) <= width:
            return _line(text, "bold")
    return _line(counts, "bold")


def _supervisors(overview: Overview, findings: Iterable[Finding]) -> Text:
    # What is wrong comes first: a line has room for two or three.
    wrong = [finding for finding in findings if finding.about == "supervisors" or finding.name == "ended"]
    if not overview.supervisors:
        return _line("; ".join(f"{finding.fact}; {finding.advice}" for finding in wrong), "red")
    living = sorted((one for one in overview.supervisors if one.alive is not False), key=lambda one: one.started_at)
    host = " on {}" if overview.several_hosts else ""
    up = [
        f"supervisor {one.pid}{host.format(one.host)}, up {span(max(0.0, overview.time - one.started_at))}"
        for one in living
    ]
    style = "red" if any(finding.level != "note" or finding.name == "ended" for finding in wrong) else ""
    return _line("; ".join([*(finding.fact for finding in wrong), *up]), style)


def _bottom(view: View, width: int, *, short: bool) -> list[Text]:
    """The keys, and what is asked or was done; a short one has a single line for both."""
    text = view.message
    if view.question is not None:
        text = f"{view.question.text} y/n"
    elif view.typed:
        text = f"workers: {view.typed}▏ Enter confirms, Escape cancels"
    said = _line(text, "bold" if view.question or view.typed else "")
    known = _line(key_line(view.pane, width), "dim")
    return [said, known] if not short else [said] if text else [known]


# Between


def _body(seen: Seen, found: Panes, view: View, width: int, room: int) -> list[RenderableType]:
    subject = view.subject(found)
    if view.log:
        return [*log_lines(seen, subject, width, room)]
    if room < _LOW - 4:
        return _one_pane(found, view, width, room)
    if width >= _WIDE:
        beside = width - _TABLES - _GAP
        grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        grid.add_column(width=_TABLES)
        grid.add_column(width=beside)
        grid.add_row(
            Group(*_three_panes(found, view, _TABLES, room)),
            Group(Text(""), *side(seen, subject, beside, room - 1)),
        )
        return [grid]
    body = _three_panes(found, view, width, room)
    left = room - sum(len(found[name].rows) + 2 for name in NAMES)
    return [*body, Text(""), *side(seen, subject, width, left - 1)] if left > LEAST else body


def _one_pane(found: Panes, view: View, width: int, room: int) -> list[RenderableType]:
    """The names of the panes, and the selected one; its rows scroll."""
    pane = found[view.pane]
    row = view.row(found)
    shown = around(pane.rows, room - 2, "" if row is None else row.key)
    names = Text(no_wrap=True, overflow="ellipsis")
    for name in NAMES:
        count = str(len(found[name].rows))
        if name == view.pane and len(shown) < len(pane.rows):
            first = pane.rows.index(shown[0]) + 1 if shown else 0
            count = f"{first}–{first + len(shown) - 1} of {count}"
        names.append(f"{'▸' if name == view.pane else ' '}{name} {count} ", "bold" if name == view.pane else "dim")
    return [names, _grid(pane, shown, view, width, selected=row, mark="")]


def _three_panes(found: Panes, view: View, width: int, room: int) -> list[RenderableType]:
    """Each pane is an empty line, its column names and rows, and a line that counts the rows left out."""
    shares = share([len(found[name].rows) for name in NAMES], room - 2 * len(NAMES))
    body: list[RenderableType] = []
    for name, lines_ in zip(NAMES, shares, strict=True):
        body.append(Text(""))
        body += _pane(found[name], view, width, lines_)
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


def _pane(pane: Pane, view: View, width: int, room: int) -> list[RenderableType]:
    """Without room for all rows, the most important ones, or those around the one that was selected with the arrows."""
    selected = view.row({pane.name: pane}, pane.name)
    key = "" if selected is None else selected.key
    here = pane.name == view.pane
    whole = len(pane.rows) <= room
    scrolled = here and pane.name in view.selected
    shown = pane.rows if whole else (around if scrolled else most_interesting)(pane.rows, room - 1, key)
    grid = _grid(pane, shown, view, width, selected=selected, mark="▸" if here else " ")
    if whole:
        return [grid]
    more = f"  … and {len(pane.rows) - len(shown)} more {pane.name}"
    return [grid, _line(more, "dim")] if room else [grid]


def _grid(pane: Pane, rows: Sequence[Row], view: View, width: int, *, selected: Row | None, mark: str) -> Table:
    """The rows as a table; the selected one is marked, and reversed in the pane that the keys apply to."""
    key = None if selected is None else selected.key
    kept = _columns(pane, rows, width)
    columns = [pane.columns[index] for index in kept]
    cells = [_cells(row, row.key == key, width) for row in rows]
    grid = _table([f"{mark or ' '}{columns[0]}", *columns[1:]], [[row[index] for index in kept] for row in cells])
    for row, drawn in zip(rows, grid.rows, strict=True):
        drawn.style = "reverse" if pane.name == view.pane and row.key == key else row.style
    return grid


def _columns(pane: Pane, rows: Sequence[Row], width: int) -> list[int]:
    """The columns for which there is room, so that the last one, which says why, has some."""
    cells = [_cells(row, False, width) for row in rows]
    wants = [
        max([len(name.rstrip(">")) + (index == 0), *(cell_len(row[index]) for row in cells)])
        for index, name in enumerate(pane.columns)
    ]
    kept = list(range(len(wants)))
    for spared in SPARED[pane.name]:
        if sum(wants[index] + 2 for index in kept[:-1]) + min(wants[-1], _LAST_WIDTH) <= width:
            break
        if spared in pane.columns:
            kept.remove(pane.columns.index(spared))
    return kept


def _cells(row: Row, selected: bool, width: int) -> tuple[str, ...]:
    name = Text(row.cells[0])
    name.truncate(min(_NAME_WIDTH, width // 3), overflow="ellipsis")
    return (f"{'›' if selected else ' '}{name.plain}", *row.cells[1:])


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table like those of the other commands, but each row can have a style."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold")
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        right = name.endswith(">") and not last
        justify: Literal["left", "right"] = "right" if right else "left"
        grid.add_column(name.rstrip(">").upper(), justify=justify, no_wrap=True, ratio=1 if last else None)
    for row in rows:
        grid.add_row(*(Text(cell := clean(value, limit=MAX_CELL), style=COLOURS.get(cell, "")) for value in row))
    return grid


def _line(text: str, style: str = "") -> Text:
    return Text(clean(text, " ", limit=MAX_CELL), style=style, no_wrap=True, overflow="ellipsis")


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
