"""Pools, workers and types as rows, what is selected, and what each key does. No input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from supervisor.cli import tables
from supervisor.cli.tables import paused, span
from supervisor.domain.text import counted, pending_again
from supervisor.ops import commands
from supervisor.ops.views import Overview, PoolView, TypeView, WorkerView
from supervisor.store.base import Filter, Operations

Name = Literal["pools", "workers", "types"]
NAMES: tuple[Name, ...] = ("pools", "workers", "types")

# A name that ends in > is aligned to the right.
COLUMNS: dict[Name, tuple[str, ...]] = {
    "pools": tables.OF_POOLS,
    "workers": tables.OF_WORKERS,
    "types": ("type", "pending>", "running>", "failed>", "errors/h>", "mean>", "latest failure"),
}
_ORDER = {"busy": 0, "draining": 1, "starting": 2}  # of workers; others follow
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known: the last successful read, its time (monotonic seconds), and why newer reads fail.

    `failures` is the latest message of each type. `answer` is the result of the last action; `answers` counts the
    actions.
    """

    overview: Overview | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0
    trouble: str = ""
    answer: str = ""
    answers: int = 0


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
    """`failures` is the latest message by type."""
    pools = {_key(pool.name, pool): pool for pool in overview.pools}
    of_pools = sorted(pools.values(), key=lambda pool: (not pool.problem, not pool.paused, not pool.due))
    workers = sorted(overview.workers, key=_by_time)
    rows: dict[Name, list[Row]] = {
        "pools": [_pool(pool) for pool in of_pools],
        "workers": [_worker(worker, pools.get(_key(worker.pool, worker))) for worker in workers],
        "types": [_type(view, failures.get(view.type, "")) for view in sorted(overview.types, key=_by_trouble)],
    }
    # Each key once: two dead supervisors may have had the same pid.
    return {name: [*{row.key: row for row in of_pane}.values()] for name, of_pane in rows.items()}


def _key(name: str, one: PoolView | WorkerView) -> str:
    """Also that of its supervisor: on several hosts, these may have the same pid."""
    return f"{name}@{one.supervisor}@{one.host}"


def _pool(pool: PoolView) -> Row:
    return Row(
        _key(pool.name, pool),
        tables.of_pool(pool),
        style="red" if pool.broken else "yellow" if pool.paused or pool.problem else "",
        types=pool.types,
        pool=pool.name,
        size=pool.target if pool.fixed is None else pool.fixed,
    )


def _worker(worker: WorkerView, pool: PoolView | None) -> Row:
    of_pool = Row("", ()) if pool is None else _pool(pool)
    return replace(
        of_pool,
        key=_key(worker.name, worker),
        cells=tables.of_worker(worker),
        style="dim" if worker.job is None else "",
        job=worker.job,
    )


def _type(view: TypeView, failure: str) -> Row:
    """Its last cell is what prevents its jobs from running, and the latest failure."""
    pending, running = view.jobs.get("pending", 0), view.jobs.get("running", 0)
    obstacle = paused(view).strip()
    if not (obstacle or view.handled) and pending:
        obstacle = "no pool takes it"
    why = "; ".join(filter(None, (obstacle, failure)))
    return Row(
        view.type,
        (view.type, pending, running, view.unsuccessful, view.failures_last_hour, span(view.mean_seconds), why),
        style="yellow" if obstacle.startswith("paused") else "red" if view.failures_last_hour else "",
        types=[view.type],
    )


def _by_time(worker: WorkerView) -> tuple[float, float, str, int]:
    """Busy workers first, those that have run longest at the top."""
    return _ORDER.get(worker.state, 9), -(worker.running_for or 0.0), worker.pool, len(worker.name)


def _by_trouble(view: TypeView) -> tuple[bool, ...]:
    return (
        not view.failures_last_hour,
        not view.unsuccessful,
        not view.jobs.get("running"),
        not view.jobs.get("pending"),
    )


class Action(NamedTuple):
    """A change of the database that a key requests: a function of this module, and what it is given beside the
    operations and the time. If there is a question, only the answer y makes it happen.
    """

    perform: Callable[..., str]
    given: tuple[object, ...]
    question: str = ""


class View:
    """The panes, the selected row of each, and what else the keys have led to.

    `asked` is the action whose question is open; `message` is the result of the last key.
    """

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.panes: Panes = dict.fromkeys(NAMES, ())
        self.pane: Name = "pools"
        self.selected: dict[Name, str] = {}
        self.asked: Action | None = None
        self.message = ""
        self.helping = False
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

    def press(self, key: str) -> Action | None:
        """Returns the action to perform, if any."""
        if self.asked is not None:
            action, self.asked = self.asked, None
            self.message = "" if key in ("y", "Y") else "nothing was changed"
            return None if self.message else action
        outcome = self._outcome(key)
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
        elif self.helping or key == "?":
            self.helping = not self.helping
        elif key in ("tab", "backtab"):
            step = 1 if key == "tab" else -1
            self.pane = NAMES[(NAMES.index(self.pane) + step) % len(NAMES)]
        elif row is None or self.overview is None:
            return "nothing is selected here; Tab changes the pane"
        elif key in _MOVES:
            rows = self.panes[self.pane]
            self.selected[self.pane] = rows[min(max(0, rows.index(row) + _MOVES[key]), len(rows) - 1)].key
        else:
            return _asked(key, row, self.overview)
        return None


def _asked(key: str, row: Row, overview: Overview) -> Action | str | None:
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
    return f"pool {pool} " + (
        "is sized by the configuration again" if workers is None else f"now has {counted(workers, 'worker')}"
    )


def retry(operations: Operations, now: float, types: Sequence[str]) -> str:
    """Retry the unsuccessful jobs of these types."""
    ids = operations.jobs.ids(Filter(commands.UNSUCCESSFUL, tuple(types)))
    changed, duplicates = commands.change(operations, "retry", ids, now)
    return pending_again(changed, len(ids) - changed - duplicates, duplicates)


def cancel(operations: Operations, now: float, job: int) -> str:
    commands.check(operations, "cancel", [job])
    finished = operations.actions.cancel(job, now).finished
    return f"job {job} " + ("cancelled" if finished else "was asked to stop")
