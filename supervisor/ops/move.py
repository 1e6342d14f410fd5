"""`supervisor move`: copies every row to a database of another engine, closes the source and compares all of it.

Programs may enqueue while most rows are copied. Then the source is shut, and block by block the target is made equal.
How far it is stands in the target, written with each block, so that a move that was killed can be repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from supervisor.domain.errors import Conflict, InvalidOption, StoreError, StoreMoved
from supervisor.domain.text import counted
from supervisor.engine import open_engine, open_move_end
from supervisor.ops.move_rows import KEYS, PARENT, Aside, MoveRows, Row, digest
from supervisor.store.base import RowRefused
from supervisor.store.moving import ARRIVING, CLOSED_FOR, MOVED_FROM, MOVED_TO, MoveEnd, MoveWords
from supervisor.system import failpoints

MOST_LISTED = 1000
_STORE_EVERY = 20  # blocks that were found equal

Tell = Callable[[str, int], object]
"""Called with a table and the number of its rows so far."""


@dataclass
class MoveReport:
    """What was moved, or what would be. `digests` are of the rows in the target, by table: see `Digest`.

    `moved_at` (Unix seconds) is set if the move was complete already: these are the rows of that time.
    """

    source: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    aside: list[Aside] = field(default_factory=list)
    set_aside: int = 0
    left_columns: list[str] = field(default_factory=list)
    texts_as_times: int = 0
    running: list[str] = field(default_factory=list)
    moved_at: float | None = None

    def set_aside_one(self, one: Aside) -> None:
        self.set_aside += 1
        if len(self.aside) < MOST_LISTED:
            self.aside.append(one)


def plan(source_url: str, target_url: str) -> MoveReport:
    """What `move` would do: every row is looked at. Raises what that does; nothing is changed."""
    _require_two_engines(source_url, target_url)
    with closing(open_move_end(source_url)) as source, closing(open_move_end(target_url, planned=True)) as target:
        return _Move(source, target, "", lambda table, rows: None).rehearse()


def move(source_url: str, target_url: str, *, leave_columns: bool = False, tell: Tell) -> MoveReport:
    """Move everything, or complete what was begun. Raises Conflict while supervisors run, for a target with other jobs,
    and for a source with columns of its own unless `leave_columns`; InvalidOption; StoreError.
    """
    _require_two_engines(source_url, target_url)
    with closing(open_move_end(source_url)) as source:
        _refuse_running(source.shown, source.running())
        with closing(_with_tables(target_url)) as target:
            return _Move(source, target, source.epoch(), tell).run(leave_columns=leave_columns)


def _with_tables(url: str) -> MoveEnd:
    try:
        return open_move_end(url)
    except StoreError:
        open_engine(url).database.migrate()  # says what is wrong, if it is not that they are missing
        return open_move_end(url)


def abandon(source_url: str, target_url: str) -> None:
    """Give up a move that is not complete: the source takes jobs again, and the target is empty. Raises Conflict."""
    _require_two_engines(source_url, target_url)
    with closing(open_move_end(source_url)) as source, closing(open_move_end(target_url)) as target:
        flags, there = source.flags(), target.flags()
        if MOVED_TO in flags or MOVED_FROM in there:
            raise Conflict(f"{target.shown}: the move is complete, or nearly; repeat it, or move the jobs back")
        if ARRIVING not in there or _State.of(there[ARRIVING]).source != source.shown:
            raise Conflict(f"{target.shown}: no jobs of {source.shown} are being moved here")
        source.open({}, {CLOSED_FOR: None})
        for table, key in reversed(KEYS.items()):
            target.replace(table, key, (), (), after=None, until=None, notes={})
        target.open({}, {ARRIVING: None})


def _require_two_engines(source_url: str, target_url: str) -> None:
    source, target = (url.partition(":")[0].removesuffix("ql") for url in (source_url, target_url))
    if source == target:
        tool = "`supervisor backup`" if source == "sqlite" else "pg_dump and pg_restore"
        raise InvalidOption(
            f"a move is from SQLite to PostgreSQL, or back; {tool} can copy a database within one engine"
        )


def _refuse_running(where: str, running: Sequence[str]) -> None:
    if len(running) > 1:
        raise Conflict(
            f"supervisors {', '.join(running)} are running on {where}; stop each of them first, with SIGTERM or Ctrl-C "
            "on its host"
        )
    if running:
        raise Conflict(f"supervisor {running[0]} is running on {where}; stop it first, with SIGTERM or Ctrl-C there")


@dataclass
class _State:
    """How far a move is; stored in the target."""

    source: str
    epoch: str  # of the source
    comparing: bool = False  # otherwise copying
    table: str = ""
    after: list[Any] | None = None
    rows: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    texts_as_times: int = 0

    @classmethod
    def of(cls, text: str) -> _State:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


class _Move:
    def __init__(self, source: MoveEnd, target: MoveEnd, epoch: str, tell: Tell) -> None:
        self._source, self._target, self._tell = source, target, tell
        self._rows = MoveRows(source, target)
        self._state = _State(source.shown, epoch)

    # The plan

    def rehearse(self) -> MoveReport:
        done = self._refuse_others()
        if done is not None and done.moved_at is not None:
            return done
        report = self._report()
        report.running = self._source.running()
        report.rows = dict.fromkeys(KEYS, 0)
        gone: set[int] = set()
        for table in KEYS:
            for rows in self._rows.blocks(table, None):
                fitting = self._rows.fitting(table, rows, report.set_aside_one)
                if table == "jobs":
                    kept = {row[self._rows.at(table, "id")] for row in fitting}
                    gone |= {row[self._rows.at(table, "id")] for row in rows} - kept
                elif PARENT in self._rows.columns[table]:
                    at = self._rows.at(table, PARENT)
                    there = self._source.present({row[at] for row in fitting}) - gone
                    fitting = self._rows.children(table, fitting, there, report.set_aside_one)
                report.rows[table] += len(fitting)
                report.texts_as_times += self._rows.texts(table, rows)
        return report

    def _report(self) -> MoveReport:
        return MoveReport(self._source.shown, self._target.shown, left_columns=self._rows.left)

    # The move

    def run(self, *, leave_columns: bool) -> MoveReport:
        source, target = self._source, self._target
        done = self._refuse_others()
        if done is not None:
            return self._finished(done)
        if self._rows.left and not leave_columns:
            raise Conflict(
                f"{source.shown}: {', '.join(self._rows.left)} would stay behind, as jobs have no such columns; add "
                "--leave-columns to move without them"
            )
        self._begin()
        failpoints.reach("move.begun")
        if CLOSED_FOR not in source.flags():
            self._copy()
            _refuse_running(
                source.shown, source.shut(MoveWords.CLOSED.format(target.shown), {CLOSED_FOR: target.shown})
            )
            failpoints.reach("move.closed")
        self._compare()
        report = self._report()
        report.rows, report.digests = self._state.rows, self._state.digests
        report.texts_as_times = self._state.texts_as_times
        self._list_aside(report)
        here = source.sequences()
        greatest = {table: max(value, here.get(table, 0)) for table, value in target.sequences().items()}
        told = json.dumps({"epoch": self._state.epoch, "report": asdict(report), "at": time.time()})
        target.open(greatest, {ARRIVING: None, MOVED_FROM: told})
        failpoints.reach("move.opened")
        return self._finished(report)

    def _finished(self, report: MoveReport) -> MoveReport:
        """The target may be used: tell so at the source, unless that was done."""
        if MOVED_TO not in self._source.flags():
            gone = self._target.shown
            self._source.shut(MoveWords.MOVED.format(gone), {CLOSED_FOR: None, MOVED_TO: gone})
            failpoints.reach("move.finished")
        return report

    def _refuse_others(self) -> MoveReport | None:
        """Raises Conflict or StoreMoved if this is no place for a move. Returns the report of one that is complete but
        for the last step.
        """
        source, target = self._source, self._target
        ours, theirs = source.flags(), target.flags()
        gone = ours.get(MOVED_TO) or ours.get(CLOSED_FOR)
        if MOVED_FROM in theirs and gone == target.shown:
            told = json.loads(theirs[MOVED_FROM])
            if told["epoch"] == self._state.epoch or not self._state.epoch:
                listed = [Aside(table, tuple(key), *why) for table, key, *why in told["report"].pop("aside")]
                at = told.get("at", 0.0) if MOVED_TO in ours else None
                return MoveReport(**(told["report"] | {"moved_at": at}), aside=listed)
        if MOVED_TO in ours:
            raise StoreMoved(source.shown, ours[MOVED_TO])
        if gone not in (None, target.shown):
            raise Conflict(f"{source.shown}: its jobs are being moved to {gone}; repeat that, or end it with --abandon")
        if ARRIVING in theirs:
            state = _State.of(theirs[ARRIVING])
            if state.source != source.shown or (self._state.epoch and state.epoch != self._state.epoch):
                raise Conflict(f"{target.shown}: the jobs of {state.source} are being moved here")
        elif MOVED_TO in theirs or CLOSED_FOR in theirs:
            raise Conflict(f"{target.shown}: its own jobs were moved away; name a target that was never used")
        elif jobs := target.count("jobs"):
            raise Conflict(f"{target.shown}: it has {counted(jobs, 'job')} already; a move needs an empty target")
        return None

    def _begin(self) -> None:
        found = self._target.flags().get(ARRIVING)
        if found is None:
            running = self._target.shut(MoveWords.OPENING, {ARRIVING: self._state.text()})
            _refuse_running(self._target.shown, running)
        else:
            self._state = _State.of(found)

    def _copy(self) -> None:
        for table, after in self._from_here():
            for rows in self._rows.blocks(table, after):
                self._store(table, after, rows)
                after = self._rows.key(table, rows[-1])
                failpoints.reach("move.copied")

    def _compare(self) -> None:
        if not self._state.comparing:
            self._state = replace(self._state, comparing=True, table="", after=None, rows={}, digests={})
        unsaved = 0
        for table, after in self._from_here():
            self._state.rows.setdefault(table, 0)
            self._state.digests.setdefault(table, digest([]))
            for rows in self._rows.blocks(table, after):
                until = self._rows.key(table, rows[-1])
                wanted = self._rows.parented(table, self._rows.fitting(table, rows))
                unsaved += 1
                if digest(wanted) != (found := digest(self._rows.there(table, after, until, len(rows)))):
                    wanted = self._store(table, after, rows)
                    found = digest(self._rows.there(table, after, until, len(rows)))
                    unsaved = 0
                    if found != digest(wanted):
                        raise StoreError(f"{self._target.shown}: {table} after {after} differs from what was written")
                self._state.rows[table] += len(wanted)
                self._state.texts_as_times += self._rows.texts(table, rows)
                self._state.digests[table] = digest([(self._state.digests[table], found)])
                self._passed(table, until)
                if unsaved == _STORE_EVERY:
                    self._target.replace(table, KEYS[table], (), (), after=until, until=until, notes=self._notes())
                    unsaved = 0
                after = until
                failpoints.reach("move.verified")
            if self._rows.there(table, after, None, 1):
                self._target.replace(table, KEYS[table], (), (), after=after, until=None, notes={})

    def _from_here(self) -> Iterator[tuple[str, list[Any] | None]]:
        """The tables that are left, and behind which key."""
        tables = list(KEYS)
        for table in tables[tables.index(self._state.table or tables[0]) :]:
            yield table, self._state.after if table == self._state.table else None

    def _store(self, table: str, after: list[Any] | None, rows: Sequence[Row]) -> list[Row]:
        """Put what the target can hold of these rows in the place of what is there. Returns it."""
        key, columns, until = KEYS[table], self._rows.columns[table], self._rows.key(table, rows[-1])
        good = self._rows.parented(table, self._rows.fitting(table, rows))
        before = self._state
        if not before.comparing:
            self._passed(table, until)
        for _ in range(2):
            try:
                self._target.replace(table, key, columns, good, after=after, until=until, notes=self._notes())
            except RowRefused:
                good = [row for row in good if not self._target.refusal(table, key, columns, row)]
                continue
            return good
        raise StoreError(
            f"{self._target.shown}: rows of {table} after {after} are refused, but each of them is accepted"
        )

    def _passed(self, table: str, until: list[Any]) -> None:
        self._state = replace(self._state, table=table, after=until)
        if self._state.comparing:
            self._tell(table, self._state.rows[table])

    def _notes(self) -> dict[str, str | None]:
        return {ARRIVING: self._state.text()}

    def _list_aside(self, report: MoveReport) -> None:
        """Look for what is not in the target. Another pass, because a move may have been killed in between."""
        for table in KEYS:
            if self._source.count(table) == report.rows[table]:
                continue
            after: list[Any] | None = None
            for rows in self._rows.blocks(table, after):
                until = self._rows.key(table, rows[-1])
                good = self._rows.parented(
                    table, self._rows.fitting(table, rows, report.set_aside_one), report.set_aside_one
                )
                there = {tuple(self._rows.key(table, row)) for row in self._rows.there(table, after, until, len(rows))}
                for row in good:
                    if tuple(self._rows.key(table, row)) not in there:
                        why = self._target.refusal(table, KEYS[table], self._rows.columns[table], row)
                        report.set_aside_one(Aside(table, tuple(self._rows.key(table, row)), "", why))
                after = until
