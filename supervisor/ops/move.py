"""`supervisor move`: shuts the source, and copies every row to a database of another engine.

Rows are read in the order of a key and written in blocks, each of which is read back, in one transaction of the target:
a move that was killed has changed nothing there, and is repeated from the beginning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from supervisor.domain.errors import Conflict, InvalidOption, NoTables, StoreError, StoreMoved
from supervisor.domain.text import counted, without_password
from supervisor.engine import open_engine
from supervisor.store.moving import CLOSED_FOR, KEYS, MOVED_FROM, MOVED_TO, Key, MoveEnd
from supervisor.system import failpoints

BLOCK = 1000  # rows
MOST_LISTED = 1000
_PARENT = "job_id"  # the column of what belongs to a job


@dataclass
class MoveReport:
    """What was moved, or what would be. `aside` tells rows that the target cannot hold, `set_aside` counts them.

    `moved_at` (Unix seconds) is set if the move was complete already: these are the rows of that time.
    """

    source: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    set_aside: int = 0
    left_columns: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    moved_at: float | None = None

    def leave(self, table: str, key: Key, problem: str) -> None:
        self.set_aside += 1
        if len(self.aside) < MOST_LISTED:
            self.aside.append(f"{table} {', '.join(map(str, key))}: {problem}")


def plan(source_url: str, target_url: str) -> MoveReport:
    """How many rows there are to move, which columns would stay if the target has tables already, and which supervisors
    run. Raises Conflict or StoreMoved if the target cannot take them; nothing is changed.
    """
    with closing(_source(source_url, target_url)) as source:
        rows = {table: source.count(table) for table in KEYS}
        report = MoveReport(source.shown, without_password(target_url), rows, running=source.running())
        try:
            target = open_engine(target_url).move_end()
        except NoTables:
            return report
        with closing(target):
            done = _arrived(source, target)
            report.left_columns = _columns(source, target)[1]
            return report if done is None or done.moved_at is None else done


def move(source_url: str, target_url: str, *, leave_columns: bool = False) -> MoveReport:
    """Move everything, or complete what was begun. Raises Conflict while supervisors run, for a target with other jobs,
    and for a source with columns of its own unless `leave_columns`; InvalidOption; StoreError.
    """
    with closing(_source(source_url, target_url)) as source:
        source.refuse_running()
        with closing(_with_tables(target_url)) as target:
            report = _arrived(source, target)
            if report is None:
                report = MoveReport(source.shown, target.shown)
                columns, report.left_columns = _columns(source, target)
                if report.left_columns and not leave_columns:
                    raise Conflict(
                        f"{source.shown}: {', '.join(report.left_columns)} would stay behind, as jobs have no such "
                        "columns; add --leave-columns to move without them"
                    )
                source.shut(CLOSED_FOR, target.shown)
                failpoints.reach("move.closed")
                _fill(target, source, columns, report)
                failpoints.reach("move.arrived")
            if MOVED_TO not in source.flags():
                source.shut(MOVED_TO, target.shown)
                failpoints.reach("move.finished")
            return report


def abandon(source_url: str, target_url: str) -> None:
    """Give up a move that is not complete: the source takes jobs again. Raises Conflict."""
    with closing(_source(source_url, target_url)) as source, closing(_with_tables(target_url)) as target:
        flags = source.flags()
        if MOVED_TO in flags or _arrived(source, target) is not None:
            raise Conflict(f"{target.shown}: the move is complete, or nearly; repeat it, or move the jobs back")
        if flags.get(CLOSED_FOR) != target.shown:
            raise Conflict(f"{target.shown}: no jobs of {source.shown} are being moved here")
        source.reopen()


def _source(source_url: str, target_url: str) -> MoveEnd:
    source, target = (url.partition(":")[0].removesuffix("ql") for url in (source_url, target_url))
    if source == target:
        tool = "`supervisor backup`" if source == "sqlite" else "pg_dump and pg_restore"
        raise InvalidOption(
            f"a move is from SQLite to PostgreSQL, or back; {tool} can copy a database within one engine"
        )
    return open_engine(source_url).move_end()


def _with_tables(url: str) -> MoveEnd:
    try:
        return open_engine(url).move_end()
    except NoTables:
        open_engine(url).database.migrate()
        return open_engine(url).move_end()


def _arrived(source: MoveEnd, target: MoveEnd) -> MoveReport | None:
    """The report of a move between these two that has reached the target; without `moved_at` if the source does not say
    so yet. Raises Conflict or StoreMoved if there is none and the target is no place for one.
    """
    ours, theirs = source.flags(), target.flags()
    gone = ours.get(MOVED_TO) or ours.get(CLOSED_FOR)
    if MOVED_FROM in theirs and gone == target.shown:
        done = json.loads(theirs[MOVED_FROM])
        if done.pop("epoch") == ours.get("epoch", ""):
            report = MoveReport(**done)
            return report if MOVED_TO in ours else replace(report, moved_at=None)
    if MOVED_TO in ours:
        raise StoreMoved(source.shown, ours[MOVED_TO])
    if gone not in (None, target.shown):
        raise Conflict(f"{source.shown}: its jobs are being moved to {gone}; repeat that, or end it with --abandon")
    if MOVED_TO in theirs or CLOSED_FOR in theirs:
        raise Conflict(f"{target.shown}: its own jobs were moved away; name a target that was never used")
    _refuse_jobs(target, target.count("jobs"))
    return None


def _refuse_jobs(target: MoveEnd, jobs: int) -> None:
    if jobs:
        raise Conflict(f"{target.shown}: it has {counted(jobs, 'job')} already; a move needs an empty target")


def _columns(source: MoveEnd, target: MoveEnd) -> tuple[dict[str, list[str]], list[str]]:
    """By table those that both have, and those that the target does not have."""
    both, left = dict[str, list[str]](), list[str]()
    for table in KEYS:
        theirs, ours = source.columns(table), target.columns(table)
        both[table] = [column for column in theirs if column in ours]
        left += [f"{table}.{column}" for column in theirs if column not in ours]
    return both, left


def _fill(target: MoveEnd, source: MoveEnd, columns: dict[str, list[str]], report: MoveReport) -> None:
    """All rows, and that they have arrived. Notes in the report what was moved."""
    given = (source.sequences(), target.sequences())
    with target.write() as raw:
        _refuse_jobs(target, target.count("jobs", raw))
        target.refuse_running()
        target.clear(raw)
        for table, names in columns.items():
            report.rows[table] = _copy(raw, target, source, table, names, report)
        here, there = sum(map(source.count, KEYS)), {table: target.count(table, raw) for table in KEYS}
        if there != report.rows or here != sum(there.values()) + report.set_aside:
            raise StoreError(
                f"{report.source} has {here} rows and {report.target} has {there}, where {report.rows} were moved and "
                f"{report.set_aside} set aside"
            )
        greatest = {table: max(each.get(table, 0) for each in given) for table in ("jobs", "job_errors", "job_runs")}
        done = asdict(replace(report, moved_at=time.time())) | {"epoch": source.flags().get("epoch", "")}
        target.finish(raw, greatest, json.dumps(done))


def _copy(raw: Any, target: MoveEnd, source: MoveEnd, table: str, names: Sequence[str], report: MoveReport) -> int:
    """The rows of a table that the target can hold. Returns how many there were; the others are in the report."""
    key = [names.index(column) for column in KEYS[table]]
    parent = names.index(_PARENT) if _PARENT in names else None
    after, moved = None, 0
    while rows := source.block(table, names, after, BLOCK):
        fitted = [target.fitted(table, names, row) for row in rows]
        if parent is not None:
            jobs = target.present(raw, {row[parent] for row in fitted if not isinstance(row, str)})
            missing = f"{_PARENT}: its job is missing, or set aside"
            fitted = [row if isinstance(row, str) or row[parent] in jobs else missing for row in fitted]
        for row, problem in zip(rows, fitted, strict=True):
            if isinstance(problem, str):
                report.leave(table, [row[at] for at in key], problem)
        if fitting := [row for row in fitted if not isinstance(row, str)]:
            target.add(raw, table, names, after, fitting)
        moved += len(fitting)
        after = [rows[-1][at] for at in key]
        failpoints.reach("move.copied")
    return moved
