"""The selection, the open question, and what each key does. No input or output: a key produces a new view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from supervisor.cli.top.actions import Action, Cancel, Pause, Retry, Scale
from supervisor.cli.top.panes import NAMES, Name, Pane, Row
from supervisor.domain.text import counted
from supervisor.ops.commands import MANY_WORKERS, MOST_WORKERS
from supervisor.ops.views import Overview

Panes = Mapping[Name, Pane]
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Question:
    """The action is performed only if the answer is y."""

    text: str
    action: Action


@dataclass(frozen=True, slots=True)
class Subject:
    """The job whose log is shown."""

    job: int
    worker: str


@dataclass(frozen=True, slots=True)
class View:
    """`typed` holds the digits of a pool's new size, `message` the result of the last action. With `log`, a log takes
    the place of the tables.
    """

    pane: Name = "pools"
    selected: Mapping[Name, str] = field(default_factory=dict)
    question: Question | None = None
    typed: str = ""
    message: str = ""
    help: bool = False
    log: bool = False
    quitting: bool = False

    def row(self, panes: Panes, pane: Name | None = None) -> Row | None:
        """The selected row, or the first one if the selected row is gone."""
        name = pane or self.pane
        rows = panes[name].rows
        return panes[name].row(self.selected.get(name, "")) or (rows[0] if rows else None)

    def subject(self, panes: Panes) -> Subject | None:
        """The job of the selected worker, or the one that runs longest in the selected pool, or of such a type; if
        there is none, the one that runs longest.
        """
        row = self.row(panes)
        busy = [(worker, worker.job) for worker in panes["workers"].rows if worker.job is not None]
        for worker, job in busy:
            if worker == row if self.pane == "workers" else row and set(worker.types) & set(row.types):
                return Subject(job, worker.cells[0])
        return Subject(busy[0][1], busy[0][0].cells[0]) if busy else None


@dataclass(frozen=True, slots=True)
class Pressed:
    """The result of a key press."""

    view: View
    action: Action | None = None


def press(view: View, key: str, panes: Panes, overview: Overview | None) -> Pressed:
    """The new view, and the action to perform, if any."""
    if view.question is not None:
        return _answered(view, view.question, key)
    if view.typed:
        return _sized(view, key, panes)
    view = replace(view, message="")
    if view.help and key != "q":
        return Pressed(replace(view, help=False))
    if key in _MOVES:
        return Pressed(_moved(view, key, panes))
    if key == "q":
        return Pressed(replace(view, quitting=True))
    if key == "?":
        return Pressed(replace(view, help=True))
    if key == "l" or (view.log and key == "escape"):
        return Pressed(replace(view, log=not view.log))
    return _asked(view, key, panes, overview)


_PAGE = 10
_ALL = 1 << 30
_MOVES = {
    "up": -1, "k": -1, "down": 1, "j": 1, "tab": 1, "backtab": -1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -_ALL,
    "g": -_ALL, "end": _ALL, "G": _ALL,
}  # fmt: skip


def _moved(view: View, key: str, panes: Panes) -> View:
    step = _MOVES[key]
    if key in ("tab", "backtab"):
        return replace(view, pane=NAMES[(NAMES.index(view.pane) + step) % len(NAMES)])
    rows, current = panes[view.pane].rows, view.row(panes)
    if current is None:
        return view
    place = min(max(0, rows.index(current) + step), len(rows) - 1)
    return replace(view, selected={**view.selected, view.pane: rows[place].key})


def _asked(view: View, key: str, panes: Panes, overview: Overview | None) -> Pressed:
    row = view.row(panes)
    if key not in _MEANINGS and not key.isdecimal():
        return Pressed(view)
    if row is None or overview is None:
        return _refused(view, "nothing is selected here; Tab changes the pane")
    if key.isdecimal():
        return Pressed(replace(view, typed=key)) if row.pool else _refused(view, _NO_POOL)
    return _MEANINGS[key](view, row, overview)


_NO_POOL = "select a pool first (Tab changes the pane)"


def _refused(view: View, why: str) -> Pressed:
    return Pressed(replace(view, message=why))


def _pause(view: View, row: Row, overview: Overview) -> Pressed:
    """Pause all types, or resume them if all are already paused."""
    if not row.types:
        return _refused(view, "this pool's types are unknown")
    active = [type_ for type_ in row.types if type_ not in overview.paused]
    return Pressed(view, Pause(tuple(active) or row.types, paused=bool(active)))


def _resized(view: View, row: Row, overview: Overview, *, by: int) -> Pressed:
    named = [pool for pool in overview.pools if pool.name == row.pool]
    pool = next((pool for pool in named if pool.home == row.home), named[0] if named else None)
    if pool is None:
        return _refused(view, _NO_POOL)
    workers = (pool.target if pool.fixed is None else pool.fixed) + by
    if not 0 <= workers <= MOST_WORKERS:
        return _refused(view, f"{row.pool} cannot have {workers} workers")
    return Pressed(view, Scale(row.pool, workers))


def _automatic(view: View, row: Row, overview: Overview) -> Pressed:
    return Pressed(view, Scale(row.pool, None)) if row.pool else _refused(view, _NO_POOL)


def _retry(view: View, row: Row, overview: Overview) -> Pressed:
    number = sum(known.unsuccessful for known in overview.types if known.type in row.types)
    if not number:
        return _refused(view, f"no job of {', '.join(row.types)} has failed" if row.types else "no job has failed")
    question = f"retry {counted(number, 'job')} of {', '.join(row.types)}?"
    return Pressed(replace(view, question=Question(question, Retry(row.types, number))))


def _cancel(view: View, row: Row, overview: Overview) -> Pressed:
    if row.job is None:
        return _refused(view, "select a worker with a job first (Tab changes the pane)")
    worker = row.cells[0]
    return Pressed(replace(view, question=Question(f"cancel job {row.job} of {worker}?", Cancel(row.job))))


_MEANINGS: Mapping[str, Callable[[View, Row, Overview], Pressed]] = {
    "p": _pause,
    "+": partial(_resized, by=1),
    "=": partial(_resized, by=1),
    "-": partial(_resized, by=-1),
    "a": _automatic,
    "r": _retry,
    "c": _cancel,
}


def _answered(view: View, question: Question, key: str) -> Pressed:
    view = replace(view, question=None)
    return Pressed(view, question.action) if key in ("y", "Y") else _refused(view, "nothing was changed")


def _sized(view: View, key: str, panes: Panes) -> Pressed:
    """More digits extend the number, Enter applies it, any other key cancels."""
    if key.isdecimal() and len(view.typed) < _DIGITS:
        return Pressed(replace(view, typed=view.typed + key))
    if key == "backspace":
        return Pressed(replace(view, typed=view.typed[:-1]))
    row, workers = view.row(panes), view.typed
    view = replace(view, typed="")
    if key != "enter" or row is None:
        return _refused(view, "nothing was changed")
    action = Scale(row.pool, int(workers))
    if int(workers) > MANY_WORKERS:
        return Pressed(replace(view, question=Question(f"scale {row.pool} to {workers} workers?", action)))
    return Pressed(view, action)
