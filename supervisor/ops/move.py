"""`supervisor move`: closes the source, and copies every row to a database of another engine.

Rows are read in the order of a key and written in blocks, each of which is read back. How far it is stands in the
target, written with each block, so that a move that was killed can be repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from supervisor.domain.errors import Conflict, InvalidOption, NoTables, StoreError, StoreMoved
from supervisor.domain.text import counted, without_password
from supervisor.engine import open_engine
from supervisor.store.base import RowRefused
from supervisor.store.moving import ARRIVING, CLOSED_FOR, KEYS, MOVED_FROM, MOVED_TO, MoveEnd, MoveWords, Unfit
from supervisor.system import failpoints

BLOCK = 1000  # rows
MOST_LISTED = 1000
_PARENT = "job_id"  # the column of what belongs to a job

Row = tuple[Any, ...]


class Aside(NamedTuple):
    """A row that the target cannot hold: it stays in the source."""

    table: str
    key: tuple[Any, ...]
    column: str
    problem: str


@dataclass
class MoveReport:
    """What was moved, or what would be.

    `moved_at` (Unix seconds) is set if the move was complete already: these are the rows of that time.
    """

    source: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    aside: list[Aside] = field(default_factory=list)
    set_aside: int = 0
    left_columns: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    moved_at: float | None = None

    def set_aside_one(self, one: Aside) -> None:
        self.set_aside += 1
        if len(self.aside) < MOST_LISTED:
            self.aside.append(one)


def plan(source_url: str, target_url: str) -> MoveReport:
    """How many rows there are to move, which columns would stay if the target has tables already, and which supervisors
    run. Raises Conflict or StoreMoved if the target cannot take them; nothing is changed.
    """
    _require_two_engines(source_url, target_url)
    with closing(open_engine(source_url).move_end()) as source:
        rows = {table: source.count(table) for table in KEYS}
        report = MoveReport(source.shown, without_password(target_url), rows, running=source.running())
        try:
            target = open_engine(target_url).move_end()
        except NoTables:
            return report
        with closing(target):
            done = _refuse_others(source, target)
            report.left_columns = _columns(source, target)[1]
            return report if done is None or done.moved_at is None else done


def move(source_url: str, target_url: str, *, leave_columns: bool = False) -> MoveReport:
    """Move everything, or complete what was begun. Raises Conflict while supervisors run, for a target with other jobs,
    and for a source with columns of its own unless `leave_columns`; InvalidOption; StoreError.
    """
    _require_two_engines(source_url, target_url)
    with closing(open_engine(source_url).move_end()) as source:
        _refuse_running(source.shown, source.running())
        with closing(_with_tables(target_url)) as target:
            report = _refuse_others(source, target) or _moved(source, target, leave_columns)
            if MOVED_TO not in source.flags():  # the target may be used: tell so
                source.shut(MoveWords.MOVED.format(target.shown), {CLOSED_FOR: None, MOVED_TO: target.shown})
                failpoints.reach("move.finished")
            return report


def abandon(source_url: str, target_url: str) -> None:
    """Give up a move that is not complete: the source takes jobs again, and the target is empty. Raises Conflict."""
    _require_two_engines(source_url, target_url)
    with closing(open_engine(source_url).move_end()) as source, closing(open_engine(target_url).move_end()) as target:
        flags, there = source.flags(), target.flags()
        if MOVED_TO in flags or MOVED_FROM in there:
            raise Conflict(f"{target.shown}: the move is complete, or nearly; repeat it, or move the jobs back")
        ours = ARRIVING in there and _State.of(there[ARRIVING]).report.source == source.shown
        if not ours and flags.get(CLOSED_FOR) != target.shown:
            raise Conflict(f"{target.shown}: no jobs of {source.shown} are being moved here")
        if ours:
            _Copy(source, target).restart()
            target.open({}, {ARRIVING: None})
        source.open({}, {CLOSED_FOR: None})


def _with_tables(url: str) -> MoveEnd:
    try:
        return open_engine(url).move_end()
    except NoTables:
        open_engine(url).database.migrate()
        return open_engine(url).move_end()


def _moved(source: MoveEnd, target: MoveEnd, leave_columns: bool) -> MoveReport:
    """All but the last step."""
    copy = _Copy(source, target)
    if (left := copy.state.report.left_columns) and not leave_columns:
        raise Conflict(
            f"{source.shown}: {', '.join(left)} would stay behind, as jobs have no such columns; add "
            "--leave-columns to move without them"
        )
    begun, closed = ARRIVING in target.flags(), CLOSED_FOR in source.flags()
    if not begun:
        _refuse_running(target.shown, target.shut(MoveWords.OPENING, {ARRIVING: copy.state.text()}))
    failpoints.reach("move.begun")
    if not (begun and closed):
        copy.restart()
    if not closed:
        _refuse_running(source.shown, source.shut(MoveWords.CLOSED.format(target.shown), {CLOSED_FOR: target.shown}))
    failpoints.reach("move.closed")
    copy.run()
    given = (source.sequences(), target.sequences())
    greatest = {table: max(each.get(table, 0) for each in given) for table in ("jobs", "job_errors", "job_runs")}
    done = replace(copy.state, report=replace(copy.state.report, moved_at=time.time()))
    target.open(greatest, {ARRIVING: None, MOVED_FROM: done.text()})
    failpoints.reach("move.opened")
    return copy.state.report


def _require_two_engines(source_url: str, target_url: str) -> None:
    source, target = (url.partition(":")[0].removesuffix("ql") for url in (source_url, target_url))
    if source == target:
        tool = "`supervisor backup`" if source == "sqlite" else "pg_dump and pg_restore"
        raise InvalidOption(
            f"a move is from SQLite to PostgreSQL, or back; {tool} can copy a database within one engine"
        )


def _refuse_running(where: str, running: Sequence[str]) -> None:
    if running:
        raise Conflict(
            f"supervisor {', supervisor '.join(running)} is running on {where}; stop it first, with SIGTERM or Ctrl-C "
            "there"
        )


def _refuse_others(source: MoveEnd, target: MoveEnd) -> MoveReport | None:
    """Raises Conflict or StoreMoved if this is no place for a move. Returns the report of one that is complete but for
    the last step.
    """
    ours, theirs, epoch = source.flags(), target.flags(), source.epoch()
    gone = ours.get(MOVED_TO) or ours.get(CLOSED_FOR)
    if MOVED_FROM in theirs and gone == target.shown:
        done = _State.of(theirs[MOVED_FROM])
        if done.epoch == epoch:
            return done.report if MOVED_TO in ours else replace(done.report, moved_at=None)
    if MOVED_TO in ours:
        raise StoreMoved(source.shown, ours[MOVED_TO])
    if gone not in (None, target.shown):
        raise Conflict(f"{source.shown}: its jobs are being moved to {gone}; repeat that, or end it with --abandon")
    if ARRIVING in theirs:
        state = _State.of(theirs[ARRIVING])
        if (state.report.source, state.epoch) != (source.shown, epoch):
            raise Conflict(f"{target.shown}: the jobs of {state.report.source} are being moved here")
    elif MOVED_TO in theirs or CLOSED_FOR in theirs:
        raise Conflict(f"{target.shown}: its own jobs were moved away; name a target that was never used")
    elif jobs := target.count("jobs"):
        raise Conflict(f"{target.shown}: it has {counted(jobs, 'job')} already; a move needs an empty target")
    return None


@dataclass
class _State:
    """How far a move is; stored in the target."""

    epoch: str  # of the source
    report: MoveReport
    table: str = ""
    after: list[Any] | None = None

    @classmethod
    def of(cls, text: str) -> _State:
        found = json.loads(text)
        report = MoveReport(**found.pop("report"))
        return cls(
            report=replace(report, aside=[Aside(table, tuple(key), *why) for table, key, *why in report.aside]), **found
        )

    def text(self) -> str:
        return json.dumps(asdict(self))


def _columns(source: MoveEnd, target: MoveEnd) -> tuple[dict[str, list[str]], list[str]]:
    """By table those that both have, and those that the target does not have."""
    both, left = dict[str, list[str]](), list[str]()
    for table in KEYS:
        theirs, ours = source.columns(table), target.columns(table)
        both[table] = [column for column in theirs if column in ours]
        left += [f"{table}.{column}" for column in theirs if column not in ours]
    return both, left


class _Copy:
    """All rows, or those that are left of an interrupted move."""

    def __init__(self, source: MoveEnd, target: MoveEnd) -> None:
        self._source, self._target = source, target
        self._columns, left = _columns(source, target)
        found = target.flags().get(ARRIVING)
        report = MoveReport(source.shown, target.shown, left_columns=left)
        self.state = _State(source.epoch(), report) if found is None else _State.of(found)

    def restart(self) -> None:
        """Nothing has been copied: what was, may have changed since."""
        report = MoveReport(self._source.shown, self._target.shown, left_columns=self.state.report.left_columns)
        self.state = _State(self._source.epoch(), report)
        self._target.clear({ARRIVING: self.state.text()})

    def run(self) -> None:
        tables = list(KEYS)
        for table in tables[tables.index(self.state.table or tables[0]) :]:
            after = self.state.after if table == self.state.table else None
            self.state.report.rows.setdefault(table, 0)
            while rows := self._source.block(table, self._columns[table], after, BLOCK):
                self._move(table, after, rows)
                after = self.state.after
        here, there = ({table: end.count(table) for table in KEYS} for end in (self._source, self._target))
        report = self.state.report
        if there != report.rows or sum(here.values()) != sum(there.values()) + report.set_aside:
            raise StoreError(
                f"{report.source} has {here} rows and {report.target} has {there}, where {report.rows} were moved and "
                f"{report.set_aside} set aside"
            )

    def _key(self, table: str, row: Row) -> list[Any]:
        found = [row[self._columns[table].index(column)] for column in KEYS[table]]
        if any(isinstance(part, bytes) or (isinstance(part, str) and "\0" in part) for part in found):
            raise StoreError(
                f"{self._source.shown}: {table} has a key that is no proper text, {found!r}; delete that row"
            )
        return found

    def _move(self, table: str, after: list[Any] | None, rows: Sequence[Row]) -> None:
        """These rows, and that the target has all up to the last of them. If it refuses them, find out which."""
        report = replace(self.state.report, rows=dict(self.state.report.rows), aside=list(self.state.report.aside))
        state = replace(self.state, table=table, after=self._key(table, rows[-1]), report=report)
        try:
            self._write(after, self._fitting(table, rows, report), state)
        except RowRefused as error:
            if len(rows) == 1:
                report.set_aside_one(Aside(table, tuple(self._key(table, rows[0])), "", str(error)))
                self._write(after, [], state)
                return
            half = len(rows) // 2
            self._move(table, after, rows[:half])
            self._move(table, self.state.after, rows[half:])

    def _write(self, after: list[Any] | None, rows: list[Row], state: _State) -> None:
        table = state.table
        state.report.rows[table] = self.state.report.rows[table] + len(rows)
        self._target.write(table, self._columns[table], after, rows, {ARRIVING: state.text()})
        self.state = state
        failpoints.reach("move.copied")

    def _fitting(self, table: str, rows: Sequence[Row], report: MoveReport) -> list[Row]:
        """The rows as the target stores them, without those that it cannot hold."""
        columns, fitting = self._columns[table], list[Row]()
        for row in rows:
            found = self._target.fitted(table, columns, row)
            if isinstance(found, Unfit):
                report.set_aside_one(Aside(table, tuple(self._key(table, row)), *found))
            else:
                fitting.append(found)
        if _PARENT not in columns:
            return fitting
        at = columns.index(_PARENT)
        jobs = self._target.present({row[at] for row in fitting})
        for row in fitting:
            if row[at] not in jobs:
                why = "its job is missing, or set aside"
                report.set_aside_one(Aside(table, tuple(self._key(table, row)), _PARENT, why))
        return [row for row in fitting if row[at] in jobs]
