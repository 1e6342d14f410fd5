"""The whole screen."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from supervisor.cli.output import COLOURS
from supervisor.cli.tables import span
from supervisor.cli.top.panes import COLUMNS, NAMES, Name
from supervisor.cli.top.poller import Seen
from supervisor.cli.top.view import View
from supervisor.domain.history import HOUR, MINUTE, minute_of
from supervisor.domain.text import MAX_CELL, clean, final_lines
from supervisor.ops.diagnosis import diagnose

NARROWEST, LOWEST = 40, 10
STALE = 3.0  # seconds after which what is shown counts as old
_LOW = 18  # lines below which only one pane is shown, below a short header
_WIDE, _SIDE = 140, 63  # cells from which charts and a log are beside the panes, and those that they take
_FREE = 14  # lines from which they are below the panes
_LEAST = 5  # lines of a pane
_BARS = " ▁▂▃▄▅▆▇█"
_KEYS = "q quit  ? help  Tab pane  ↑↓ select  +- size  p pause  r retry  l log  c cancel"
_HELP = (
    "↑↓ jk select", "PgUp PgDn scroll", "g G first, last", "Tab next pane", "p pause/resume", "+ - workers",
    "7 Enter size", "a autoscale", "r retry failed", "c cancel job", "l log", "q quit",
)  # fmt: skip


def screen(seen: Seen, view: View, width: int, height: int, now: float) -> RenderableType:
    """Everything, for that many columns and lines. `now` is monotonic seconds."""
    if width < NARROWEST or height < LOWEST:
        return Text(f"too small: at least {NARROWEST} × {LOWEST} needed")
    low = height < _LOW
    head = [*_head(seen, now)][: 2 if low else None]
    asked = f"{view.asked.question} y/n" if view.asked else ""
    asked = f"workers: {view.typed}▏ Enter confirms, Escape cancels" if view.typed else asked
    said, keys = _line(asked or view.message, "bold" if asked else ""), _line(_KEYS, "dim")
    foot = [said or keys] if low else [said, keys]
    whole = Layout()
    whole.split_column(
        Layout(Group(*head), size=len(head) + (not low)),
        Layout(_body(seen, view, width, height - len(head) - len(foot), low=low)),
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


def _body(seen: Seen, view: View, width: int, room: int, *, low: bool) -> RenderableType:
    if view.page == "help":
        return Columns([Text(entry) for entry in _HELP], column_first=True, padding=(0, 3))
    if view.overview is None:
        return Text(" ")
    if view.page == "log":
        return _Log(seen, view)
    if low:
        return _Pane(view, view.pane)
    wants = {name: len(view.panes[name]) + 2 for name in NAMES}  # with the names of the columns and an empty line
    free = room - sum(wants.values())
    each = [
        Layout(_Pane(view, name), size=want if free >= 0 else None, ratio=want, minimum_size=_LEAST)
        for name, want in wants.items()
    ]
    charts, whole, panes = Layout(), Layout(), Layout()
    charts.split_column(Layout(Group(*_charts(seen)), size=7), Layout(_Log(seen, view)))
    if width >= _WIDE:
        panes.split_column(*each, Layout(Text(" "), visible=free > 0))
        whole.split_row(panes, Layout(charts, size=_SIDE))
    else:
        whole.split_column(*each, Layout(charts if free >= _FREE else Text(" "), visible=free > 0))
    return whole


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
        several = view.overview is not None and view.overview.several_hosts
        kept = [number for number, column in enumerate(COLUMNS[name]) if several or column != "host"]
        for number in kept:
            column, mark = COLUMNS[name][number], "" if number else "▸" if here else " "
            table.add_column(mark + column.rstrip(">").upper(), justify="right" if column.endswith(">") else "left")
        table.columns[0].no_wrap, table.columns[0].max_width = True, options.max_width // 3  # cut last
        for row in rows[start : start + shown]:
            selected = row.key == view.selected.get(name)
            cells = [f"{'›' if selected else ' '}{row.cells[0]}", *(row.cells[number] for number in kept[1:])]
            table.add_row(*map(_line, cells), style="reverse" if here and selected else row.style)
        yield table


@dataclass
class _Log:
    """A heading, and the end of what the subject's job has printed."""

    seen: Seen
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        subject, (job, text), height = self.view.subject, self.seen.log or (None, ""), options.height or 2
        if subject is None:
            yield _line("no job is running", "dim")
            return
        if job != subject.job or not text:
            text = "nothing yet" if job == subject.job else "…"
        yield _line(f"LOG OF JOB {subject.job}, {subject.cells[0]}", "bold")
        for line in final_lines(text[-height * 1000 :]).split("\n")[1 - height :]:
            yield _line(line.expandtabs())


def _charts(seen: Seen) -> Iterator[Text]:
    """One value for each of the last sixty full minutes, of all types together, the latest on the right."""
    last = minute_of(seen.overview.time if seen.overview else 0.0) - MINUTE
    for title, name, style in (
        ("DONE A MINUTE", "done", "green"),
        ("FAILED ATTEMPTS A MINUTE", "failed", "red"),
        ("WAITING", "waiting", "yellow"),
    ):
        by_minute: dict[float, int] = defaultdict(int)
        for minute in seen.minutes:
            by_minute[minute.at] += getattr(minute, name)
        series = [by_minute[last - MINUTE * back] for back in reversed(range(int(HOUR / MINUTE)))]
        most = max(series)
        yield _line(f"{title}  {series[-1]:,} now, {most:,} at most in the last hour", "bold")
        yield Text("".join(_BARS[-(-8 * value // max(1, most))] for value in series), style)  # any job is seen


def _line(value: object, style: str = "") -> Text:
    """One line, which is cut where there is no room for it."""
    text = clean(value, " ", limit=MAX_CELL)
    return Text(text, style or COLOURS.get(text, ""), no_wrap=True, overflow="ellipsis")
