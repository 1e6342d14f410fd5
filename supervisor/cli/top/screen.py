"""The whole screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from supervisor.cli import tables
from supervisor.cli.output import COLOURS
from supervisor.cli.tables import span
from supervisor.cli.top.view import COLUMNS, NAMES, Name, Seen, View
from supervisor.domain.text import MAX_CELL, clean
from supervisor.ops.diagnosis import diagnose

NARROWEST, LOWEST = 40, 20
STALE = 3.0  # seconds after which what is shown counts as old
_LEAST = 4  # lines of a pane
_KEYS = "q quit  ? help  Tab pane  ↑↓ select  +- size  p pause  r retry  c cancel"
_HELP = (
    "↑↓ jk select", "PgUp PgDn scroll", "Tab next pane", "p pause/resume", "+ - workers", "a autoscale",
    "r retry failed", "c cancel job", "q quit",
)  # fmt: skip


def screen(seen: Seen, view: View, width: int, height: int, now: float) -> RenderableType:
    """Everything, for that many columns and lines. `now` is monotonic seconds."""
    if width < NARROWEST or height < LOWEST:
        return Text(f"too small: at least {NARROWEST} × {LOWEST} needed")
    head = [*_head(seen, now)]
    asked = f"{view.asked.question} y/n" if view.asked else ""
    foot = [_line(asked or view.message, "bold" if asked else ""), _line(_KEYS, "dim")]
    whole = Layout()
    whole.split_column(
        Layout(Group(*head), size=len(head) + 1),
        _body(view, height - len(head) - 1 - len(foot)),
        Layout(Group(*foot), size=len(foot)),
    )
    return whole


def _head(seen: Seen, now: float) -> Iterator[Text]:
    overview = seen.overview
    if overview is None:
        yield _line("job-supervisor", "bold")
        yield _line(seen.trouble or "loading …", "red" if seen.trouble else "")
        return
    counts = "  ".join(f"{count:,} {state}" for state, count in overview.jobs.items() if count) or "no jobs"
    database = overview.database.removeprefix("sqlite:///").rpartition("/")[2]
    yield _line(f"{counts}  {database}  {time.strftime('%H:%M:%S', time.localtime(overview.time))}", "bold")
    old = now - seen.at
    if seen.trouble or old > STALE:
        yield _line(f"{span(old)} old: {seen.trouble or 'the database does not answer'}", "bold red")
    if found := diagnose(overview):
        yield _line("; ".join(finding.fact for finding in found), "red" if found[0].level == "fault" else "yellow")
    living = sorted((one for one in overview.supervisors if one.alive is not False), key=lambda one: one.started_at)
    host = " on {}" if overview.several_hosts else ""
    up = (f"supervisor {one.pid}{host.format(one.host)}, up {span(overview.time - one.started_at)}" for one in living)
    yield _line("; ".join(up))


def _body(view: View, room: int) -> Layout:
    if view.helping:
        return Layout(Columns([Text(entry) for entry in _HELP], column_first=True, padding=(0, 3)))
    if view.overview is None:
        return Layout(Text(" "))
    wants = {name: len(view.panes[name]) + 2 for name in NAMES}  # with the names of the columns and an empty line
    fits = sum(wants.values()) <= room
    body = Layout()
    body.split_column(
        *(
            Layout(_Pane(view, name), size=want if fits else None, ratio=want, minimum_size=_LEAST)
            for name, want in wants.items()
        ),
        Layout(Text(" "), visible=fits),
    )
    return body


@dataclass
class _Pane:
    """The first rows, or those around the selected one in the pane that the keys apply to."""

    view: View
    name: Name

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        view, name, rows, here = self.view, self.name, self.view.panes[self.name], self.name == self.view.pane
        room = max(1, (options.height or 0) - 2)
        shown = room if len(rows) <= room else room - 1
        start = max(0, min(view.place(name) - shown // 2, len(rows) - shown)) if here else 0
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", caption_justify="left")
        table.caption = f"… and {len(rows) - shown} more {name}" if len(rows) > room else None
        hidden = set() if view.overview is None else tables.hidden(view.overview)
        kept = [number for number, column in enumerate(COLUMNS[name]) if column not in hidden]
        for number in kept:
            column, mark = COLUMNS[name][number], "" if number else "▸" if here else " "
            table.add_column(mark + column.rstrip(">").upper(), justify="right" if column.endswith(">") else "left")
        table.columns[0].no_wrap, table.columns[0].max_width = True, options.max_width // 3  # cut last
        for row in rows[start : start + shown]:
            selected = row.key == view.selected.get(name)
            cells = [f"{'›' if selected else ' '}{row.cells[0]}", *(row.cells[number] for number in kept[1:])]
            table.add_row(*map(_line, cells), style="reverse" if here and selected else row.style)
        yield table


def _line(value: object, style: str = "") -> Text:
    """One line, which is cut where there is no room for it."""
    text = clean(value, " ", limit=MAX_CELL)
    return Text(text, style or COLOURS.get(text, ""), no_wrap=True, overflow="ellipsis")
