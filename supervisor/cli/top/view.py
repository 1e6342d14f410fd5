"""What is selected, and what each key does. No input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from supervisor.cli.top.panes import NAMES, Name, Panes, Row, panes
from supervisor.domain.text import counted, pending_again
from supervisor.ops import commands
from supervisor.ops.views import Overview
from supervisor.store.base import Filter, Operations

_Page = Literal["panes", "log", "help"]
_PAGES: dict[str, _Page] = {"l": "log", "?": "help"}
_DIGITS = 4
_PAGE = 10
_ALL = 1 << 30
_MOVES = {
    "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -_ALL, "g": -_ALL, "end": _ALL,
    "G": _ALL,
}  # fmt: skip


class Action(NamedTuple):
    """A change of the database that a key requests: a function of this module, and what it is given beside the
    operations and the time. If there is a question, only the answer y makes it happen.
    """

    perform: Callable[..., str]
    given: tuple[object, ...]
    question: str = ""


class View:
    """The panes, the selected row of each, and what else the keys have led to.

    `asked` is the action whose question is open; `typed` holds the digits of a pool's new size; `message` is the result
    of the last key.
    """

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.panes: Panes = dict.fromkeys(NAMES, ())
        self.pane: Name = "pools"
        self.selected: dict[Name, str] = {}
        self.asked: Action | None = None
        self.typed = ""
        self.message = ""
        self.page: _Page = "panes"
        self.quitting = False

    def see(self, overview: Overview | None, failures: Mapping[str, str]) -> None:
        """New rows. The selection stays on the same one; if it is gone, it goes to the first."""
        if overview is not None:
            self.overview, self.panes = overview, panes(overview, failures)
        self.selected = {name: rows[self.place(name)].key for name, rows in self.panes.items() if rows}

    def place(self, name: Name) -> int:
        """The number of the selected row; 0 if it is not there."""
        keys = [row.key for row in self.panes[name]]
        return keys.index(self.selected[name]) if self.selected.get(name) in keys else 0

    @property
    def row(self) -> Row | None:
        """The selected row of the pane that the keys apply to."""
        rows = self.panes[self.pane]
        return rows[self.place(self.pane)] if rows else None

    @property
    def subject(self) -> Row | None:
        """The selected worker, or the one whose job runs longest in the selected pool, or of such a type; if there is
        none, the one whose job runs longest.
        """
        row, busy = self.row, [worker for worker in self.panes["workers"] if worker.job is not None]
        for worker in busy:
            if worker == row if self.pane == "workers" else row and set(worker.types) & set(row.types):
                return worker
        return busy[0] if busy else None

    def press(self, key: str) -> Action | None:
        """Returns the action to perform, if any."""
        if self.asked is not None:
            action, self.asked = self.asked, None
            self.message = "" if key in ("y", "Y") else "nothing was changed"
            return None if self.message else action
        outcome = self._type(key) if self.typed else self._outcome(key)
        self.message = outcome if isinstance(outcome, str) else ""
        if isinstance(outcome, Action) and outcome.question:
            self.asked = outcome
            return None
        return outcome if isinstance(outcome, Action) else None

    def _outcome(self, key: str) -> Action | str | None:
        """An action, or what is said instead."""
        row = self.row
        if key == "q":
            self.quitting = True
        elif self.page == "help" or (self.page == "log" and key in ("l", "escape")):
            self.page = "panes"
        elif key in _PAGES:
            self.page = _PAGES[key]
        elif key in ("tab", "backtab"):
            step = 1 if key == "tab" else -1
            self.pane = NAMES[(NAMES.index(self.pane) + step) % len(NAMES)]
        elif row is None or self.overview is None:
            return "nothing is selected here; Tab changes the pane"
        elif key in _MOVES:
            rows = self.panes[self.pane]
            self.selected[self.pane] = rows[min(max(0, rows.index(row) + _MOVES[key]), len(rows) - 1)].key
        elif key in ("+", "=", "-", "a") or key.isdecimal():
            return self._size(key, row)
        else:
            return _asked(key, row, self.overview)
        return None

    def _size(self, key: str, row: Row) -> Action | str | None:
        if not row.pool:
            return "select a pool first (Tab changes the pane)"
        if key.isdecimal():
            self.typed = key
            return None
        return Action(scale, (row.pool, None if key == "a" else row.size + (-1 if key == "-" else 1)))

    def _type(self, key: str) -> Action | str | None:
        """More digits extend the number, Enter applies it, any other key cancels."""
        row, workers = self.row, self.typed
        if key.isdecimal() and len(workers) < _DIGITS:
            self.typed += key
            return None
        self.typed = workers[:-1] if key == "backspace" else ""
        if key != "enter" or row is None:
            return "" if self.typed else "nothing was changed"
        many = int(workers) > commands.MANY_WORKERS
        return Action(scale, (row.pool, int(workers)), f"scale {row.pool} to {workers} workers?" if many else "")


def _asked(key: str, row: Row, overview: Overview) -> Action | str | None:
    names = ", ".join(row.types)
    if key == "p" and names:
        active = [type_ for type_ in row.types if type_ not in overview.paused]
        return Action(pause, (active or row.types, bool(active)))
    if key == "r":
        failed = sum(known.unsuccessful for known in overview.types if known.type in row.types)
        question = f"retry {counted(failed, 'job')} of {names}?"
        return Action(retry, (row.types,), question) if failed else f"no job of {names} has failed"
    if key == "c":
        if row.job is None:
            return "select a worker with a job first (Tab changes the pane)"
        return Action(cancel, (row.job,), f"cancel job {row.job} of {row.cells[0]}?")
    return None


# What the keys request


def pause(operations: Operations, now: float, types: Sequence[str], paused: bool) -> str:
    """Pause all of these types, or resume them."""
    for type_ in types:
        if paused:
            operations.controls.pause(type_, now)
        else:
            operations.controls.resume(type_)
    return f"{', '.join(types)}: {'paused' if paused else 'resumed'}"


def scale(operations: Operations, now: float, pool: str, workers: int | None) -> str:
    """Fix a pool's size; None returns it to automatic scaling."""
    commands.scale(operations, pool, workers, (), now)
    return f"pool {pool} " + ("scales automatically" if workers is None else f"now has {counted(workers, 'worker')}")


def retry(operations: Operations, now: float, types: Sequence[str]) -> str:
    """Retry the unsuccessful jobs of these types."""
    ids = operations.jobs.ids(Filter(commands.UNSUCCESSFUL, tuple(types)))
    changed, duplicates = commands.change(operations, "retry", ids, now)
    return pending_again(changed, len(ids) - changed - duplicates, duplicates)


def cancel(operations: Operations, now: float, job: int) -> str:
    commands.check(operations, "cancel", [job])
    finished = operations.actions.cancel(job, now).finished
    return f"job {job} " + ("cancelled" if finished else "was asked to stop")
