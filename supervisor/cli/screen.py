"""The screen of `top`: pools, workers and types as rows, what each key does, and how it is drawn. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from supervisor.cli import tables
from supervisor.cli.output import COLOURS
from supervisor.cli.tables import paused, span
from supervisor.domain.text import MAX_CELL, clean, counted, pending_again
from supervisor.ops import commands
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.views import Overview, PoolView, TypeView, WorkerView
from supervisor.store.base import Filter, Operations

NARROWEST, LOWEST = 40, 20
STALE = 3.0  # seconds after which what is shown counts as old
_LEAST = 4  # lines of a pane
_KEYS = "q quit  ? help  Tab pane  ↑↓ select  +- size  p pause  r retry  c cancel"
_HELP = (
    "↑↓ jk select", "PgUp PgDn scroll", "Tab next pane", "p pause/resume", "+ - workers", "a autoscale",
    "r retry failed", "c cancel job", "q quit",
)  # fmt: skip
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}
_STATES = ("busy", "draining", "starting")  # of workers, the first at the top; others follow

Name = Literal["pools", "workers", "types"]
# A name of a column that ends in > is aligned to the right.
COLUMNS: dict[Name, tuple[str, ...]] = {
    "pools": tables.OF_POOLS,
    "workers": tables.OF_WORKERS,
    "types": ("type", "pending>", "held>", "running>", "failed>", "errors/h>", "mean>", "latest failure"),
}
NAMES = tuple(COLUMNS)


@dataclass(frozen=True, slots=True)
class Row:
    """`key` identifies what the row shows. Keys act on its types, its pool (`size`: the wanted one) and its job."""

    key: str
    cells: tuple[object, ...]
    style: str = ""
    types: Sequence[str] = ()
    pool: str = ""
    size: int = 0
    job: int | None = None


Panes = Mapping[Name, Sequence[Row]]


def panes(overview: Overview, failures: Mapping[str, str]) -> Panes:
    """The rows of each pane, the important ones first. `failures` is the latest message by type."""
    pools = {_key(pool.name, pool): pool for pool in overview.pools}
    of_pools = {key: _pool(key, pool) for key, pool in pools.items()}
    workers = sorted(
        overview.workers,
        key=lambda worker: (
            _STATES.index(worker.state) if worker.state in _STATES else 9,
            -(worker.running_for or 0.0),
            worker.pool,
            len(worker.name),
        ),
    )
    types = sorted(
        overview.types,
        key=lambda view: (
            not view.failures_last_hour,
            not view.unsuccessful,
            not view.jobs.get("running"),
            not view.jobs.get("pending"),
        ),
    )
    order = sorted(pools, key=lambda key: (not pools[key].problem, not pools[key].paused, not pools[key].due))
    rows: dict[Name, list[Row]] = {
        "pools": [of_pools[key] for key in order],
        "workers": [_worker(worker, of_pools.get(_key(worker.pool, worker), Row("", ()))) for worker in workers],
        "types": [_type(view, failures.get(view.type, "")) for view in types],
    }
    # Each key once: two dead supervisors may have had the same pid.
    return {name: [*{row.key: row for row in of_pane}.values()] for name, of_pane in rows.items()}


def _key(name: str, one: PoolView | WorkerView) -> str:
    """Also that of its supervisor: on several hosts, these may have the same pid."""
    return f"{name}@{one.supervisor}@{one.host}"


def _pool(key: str, pool: PoolView) -> Row:
    style = "red" if pool.broken else "yellow" if pool.paused or pool.problem else ""
    size = pool.target if pool.fixed is None else pool.fixed
    return Row(key, tables.of_pool(pool), style, pool.types, pool.name, size)


def _worker(worker: WorkerView, pool: Row) -> Row:
    style = "dim" if worker.job is None else ""
    return replace(pool, key=_key(worker.name, worker), cells=tables.of_worker(worker), style=style, job=worker.job)


def _type(view: TypeView, failure: str) -> Row:
    """Its last cell is what prevents its jobs from running, and the latest failure."""
    pending, held, running = (view.jobs.get(state, 0) for state in ("pending", "held", "running"))
    obstacle = paused(view).strip()
    if not (obstacle or view.handled) and pending:
        obstacle = "no pool takes it"
    why = "; ".join(filter(None, (obstacle, view.limits_shown, failure)))
    jobs = (pending, held, running, view.unsuccessful)
    cells = (view.type, *jobs, view.failures_last_hour, span(view.mean_seconds), why)
    style = "yellow" if obstacle.startswith("paused") else "red" if view.failures_last_hour else ""
    return Row(view.type, cells, style, types=[view.type])


# What the keys request: functions of the operations, the time and what is selected


class Action(NamedTuple):
    """A change of the database: a function, and what it is given beside the operations and the time. If there is a
    question, only the answer y makes it happen.
    """

    perform: Callable[..., str]
    given: tuple[object, ...]
    question: str = ""


def pause(operations: Operations, now: float, types: Sequence[str], paused: bool) -> str:
    """Pause all of these types, or resume them."""
    for type_ in types:
        commands.pause(operations, type_, paused, now, force=True)
    return f"{', '.join(types)}: {'paused' if paused else 'resumed'}"


def scale(operations: Operations, now: float, pool: str, workers: int | None) -> str:
    """Fix a pool's size; None returns it to automatic scaling."""
    commands.scale(operations, pool, workers, (), now)
    return commands.scaled(pool, workers)


def retry(operations: Operations, now: float, types: Sequence[str]) -> str:
    """Retry the unsuccessful jobs of these types."""
    ids = operations.jobs.ids(Filter(commands.UNSUCCESSFUL, tuple(types)))
    changed, duplicates = commands.change(operations, "retry", ids, now)
    return pending_again(changed, len(ids) - changed - duplicates, duplicates)


def cancel(operations: Operations, now: float, job: int) -> str:
    commands.check(operations, "cancel", [job])
    finished = operations.actions.cancel(job, now).finished
    return f"job {job} " + ("cancelled" if finished else "was asked to stop")


def _requested(key: str, row: Row, overview: Overview) -> Action | str:
    """What a key requests for the selected row, or what is said instead."""
    names = ", ".join(row.types)
    if key in ("+", "=", "-", "a"):
        size = None if key == "a" else row.size + (-1 if key == "-" else 1)
        return Action(scale, (row.pool, size)) if row.pool else "select a pool first (Tab changes the pane)"
    if key == "p" and names:
        active = [type_ for type_ in row.types if type_ not in overview.paused]
        return Action(pause, (active or row.types, bool(active)))
    if key == "r":
        failed = sum(known.unsuccessful for known in overview.types if known.type in row.types)
        question = f"retry {counted(failed, 'job')} of {names}?"
        return Action(retry, (row.types,), question) if failed else f"no job of {names} has failed"
    if key == "c" and row.job is None:
        return "select a worker with a job first (Tab changes the pane)"
    return Action(cancel, (row.job,), f"cancel job {row.job} of {row.cells[0]}?") if key == "c" else ""


class View:
    """What is known, the selected row of each pane, and what else the keys have led to.

    `at` is when the overview was read (monotonic seconds), `trouble` why newer reads fail. `asked` is the action whose
    question is open; `message` is the result of the last key or action.
    """

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.panes: Panes = dict.fromkeys(NAMES, ())
        self.at = 0.0
        self.trouble = ""
        self.pane: Name = "pools"
        self.selected: dict[Name, str] = {}
        self.asked: Action | None = None
        self.message = ""
        self.helping = False
        self.quitting = False

    def see(self, overview: Overview, failures: Mapping[str, str], at: float = 0.0) -> None:
        """New rows. The selection stays on the same one; if it is gone, it goes to the first."""
        self.overview, self.panes, self.at, self.trouble = overview, panes(overview, failures), at, ""
        self.selected = {name: rows[self.place(name)].key for name, rows in self.panes.items() if rows}

    def place(self, name: Name) -> int:
        """The number of the selected row; 0 if it is not there."""
        keys = [row.key for row in self.panes[name]]
        return keys.index(self.selected[name]) if self.selected.get(name) in keys else 0

    def press(self, key: str) -> Action | None:
        """Returns the action to perform, if any."""
        if self.asked is not None:
            action, self.asked = self.asked, None
            self.message = "" if key in ("y", "Y") else "nothing was changed"
            return None if self.message else action
        self.message = ""
        rows, here = self.panes[self.pane], self.place(self.pane)
        if key == "q":
            self.quitting = True
        elif self.helping or key == "?":
            self.helping = not self.helping
        elif key in ("tab", "backtab"):
            self.pane = NAMES[(NAMES.index(self.pane) + (1 if key == "tab" else -1)) % len(NAMES)]
        elif not rows or self.overview is None:
            self.message = "nothing is selected here; Tab changes the pane"
        elif key in _MOVES:
            self.selected[self.pane] = rows[min(max(0, here + _MOVES[key]), len(rows) - 1)].key
        else:
            requested = _requested(key, rows[here], self.overview)
            if isinstance(requested, Action) and not requested.question:
                return requested
            if isinstance(requested, Action):
                self.asked = requested
            else:
                self.message = requested
        return None


def screen(view: View, width: int, height: int, now: float) -> RenderableType:
    """Everything, for that many columns and lines. `now` is monotonic seconds."""
    if width < NARROWEST or height < LOWEST:
        return Text(f"too small: at least {NARROWEST} × {LOWEST} needed")
    head = [*_head(view, now)]
    asked = f"{view.asked.question} y/n" if view.asked else ""
    foot = [_line(asked or view.message, "bold" if asked else ""), _line(_KEYS, "dim")]
    whole = Layout()
    whole.split_column(
        Layout(Group(*head), size=len(head) + 1),
        _body(view, height - len(head) - 1 - len(foot)),
        Layout(Group(*foot), size=len(foot)),
    )
    return whole


def _head(view: View, now: float) -> Iterator[Text]:
    overview = view.overview
    if overview is None:
        yield _line("job-supervisor", "bold")
        yield _line(view.trouble or "loading …", "red" if view.trouble else "")
        return
    counts = "  ".join(f"{count:,} {state}" for state, count in overview.jobs.items() if count) or "no jobs"
    database = overview.database.removeprefix("sqlite:///").rpartition("/")[2]
    yield _line(f"{counts}  {database}  {time.strftime('%H:%M:%S', time.localtime(overview.time))}", "bold")
    old = now - view.at
    if view.trouble or old > STALE:
        yield _line(f"{span(old)} old: {view.trouble or 'the database does not answer'}", "bold red")
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
    hidden = tables.hidden(view.overview)
    wants = {name: len(rows) + 2 for name, rows in view.panes.items()}  # with the column names and an empty line
    fits = sum(wants.values()) <= room
    body = Layout()
    body.split_column(
        *(
            Layout(_Pane(view, name, hidden), size=want if fits else None, ratio=want, minimum_size=_LEAST)
            for name, want in wants.items()
        ),
        Layout(Text(" "), visible=fits),
    )
    return body


class _Pane(NamedTuple):
    """The first rows, or those around the selected one in the pane that the keys apply to."""

    view: View
    name: Name
    hidden: set[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        view, name = self.view, self.name
        rows, columns, here = view.panes[name], COLUMNS[name], name == view.pane
        room = max(1, (options.height or 0) - 2)
        shown = room if len(rows) <= room else room - 1
        start = max(0, min(view.place(name) - shown // 2, len(rows) - shown)) if here else 0
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", caption_justify="left")
        table.caption = f"… and {len(rows) - shown} more {name}" if len(rows) > room else None
        kept = [number for number, column in enumerate(columns) if column not in self.hidden]
        for number in kept:
            column, mark = columns[number], "" if number else "▸" if here else " "
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
