"""Where to look for pending jobs while a transaction elsewhere on the server stays open.

Such a transaction keeps what has been claimed in the index of pending rows, and each look for the first pending row
walks all of it. So once a look was long, the supervisors, workers and maintainers of a host share marks, in a file for
each selection of jobs: the position (scheduled_at, id) of each group of type, requirements and priority, before which
nothing was pending. They look from there. What a mark passes over, which is a row inserted late or with an earlier
time, or a group that is new, is found when one of them looks at everything again, which a timer alone decides.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from supervisor.domain.errors import StoreError
from supervisor.domain.job import at_least
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.backlog import LOWEST, JobSelector
from supervisor.store.sql.connection import Row

LONG = 3000  # entries of the index walked, beyond which a look is long: about two milliseconds
_BESIDE = 32  # more for each job wanted: eight workers that claim as many at a time walk over 20 of each other's
SHORTEST, LONGEST = 0.5, 60.0  # seconds between two looks at everything
_COST = 50  # the time between them is at least so many times what the last one took
_LATE = 1.0  # seconds: where nothing is pending, a mark is so far in the past
_GROUPS = 300  # that are remembered at most
_BYTES = 256 * 1024

Group = tuple[str, str, int]  # type, requirements, priority
Position = tuple[float, int]  # scheduled_at, id
_EVERYWHERE: dict[str, Any] = dict.fromkeys(("in_types", "in_requires", "in_priorities", "from_times", "from_ids"))


class Marks(NamedTuple):
    """`generation` counts the looks at everything; `due` is when the next one is to be made, in monotonic seconds."""

    generation: int
    due: float
    groups: dict[Group, Position]


class SharedMarks:
    """The marks of one selection of jobs. There are none, and nothing is read, until a look was `long`."""

    def __init__(self, connection: Connection, wanted: JobSelector) -> None:
        self._connection = connection
        self._wanted = wanted
        least = [] if wanted.min_priority is None else [wanted.min_priority]
        name = hashlib.sha256(json.dumps([*wanted.types, wanted.capabilities, *least]).encode()).hexdigest()[:16]
        self._path = connection.address.folder / f"marks-{name}"
        self._descriptor = -1

    @property
    def used(self) -> bool:
        """Whether looks were long lately."""
        return self._descriptor >= 0

    def note(self, walked: int, want: int = 0) -> None:
        """A look at everything, for so many jobs, has walked over so many entries: if it was long, there are marks from
        now on.
        """
        if walked > LONG + _BESIDE * want and not self.used:
            with suppress(StoreError):  # no marks without a file: looks stay long
                self._descriptor = self._connection.address.open_shared(self._path)

    def current(self) -> Marks | None:
        """The marks; None if looks are short again. Looks at everything if it is time, and nobody else does."""
        if not self.used:
            return None
        with self._locked():
            marks, now = self._read(), time.monotonic()
            if marks is not None and now < marks.due <= now + LONGEST:  # another boot had another clock
                return marks
            if marks is not None:  # the others go on with them meanwhile
                self._write(marks._replace(due=now + LONGEST))
        try:
            return self._look(marks)
        except BaseException:
            with self._locked():
                self._write(marks and marks._replace(due=0.0))
            raise

    def first_due(self, now: float) -> Marks:
        """Where each group begins that has a due row, by a look at everything. They are no marks to be raised."""
        *rows, (_, _, _, _, walked) = self._connection.rows(QUERIES.first_of_groups, asked(self._wanted) | _EVERYWHERE)
        self.note(walked)
        due = {(kind, word, rank): (at, id_) for kind, word, rank, at, id_ in rows if at <= now}
        return Marks(0, 0.0, due)

    def parameters(self, marks: Marks | None, want: int = 0) -> dict[str, Any]:
        """For the functions that take positions."""
        most = LONG + _BESIDE * want
        if marks is None:
            return _EVERYWHERE | {"most": most}
        return {
            "in_types": [type_ for type_, _, _ in marks.groups],
            "in_requires": [requires for _, requires, _ in marks.groups],
            "in_priorities": [priority for _, _, priority in marks.groups],
            "from_times": [at for at, _ in marks.groups.values()],
            "from_ids": [job_id for _, job_id in marks.groups.values()],
            "most": most,
        }

    def raise_to(self, seen: Marks, claimed: Iterable[tuple[Group, Position]]) -> None:
        """Move the marks to what was claimed from `seen`, unless somebody has looked at everything meanwhile."""
        reached = dict(claimed)  # the last one of each group
        if not reached:
            return
        with self._locked():
            marks = self._read()
            if marks is not None and marks.generation == seen.generation:
                for group, position in reached.items():
                    marks.groups[group] = max(position, marks.groups.get(group, position))
                self._write(marks)

    def _look(self, before: Marks | None) -> Marks | None:
        """At everything."""
        began = time.monotonic()
        everything = asked(self._wanted) | _EVERYWHERE
        *rows, (_, _, _, clock, walked) = self._connection.rows(QUERIES.first_of_groups, everything)
        now = time.monotonic()
        groups = _positions(self._wanted, rows, clock, before)
        short = walked <= LONG or len(groups) > _GROUPS
        generation = 1 if before is None else before.generation + 1
        pause = min(max(SHORTEST, _COST * (now - began)), LONGEST)
        marks = None if short else Marks(generation, now + pause, groups)
        with self._locked():
            self._write(marks)
        if marks is None:
            self.close()
        return marks

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _read(self) -> Marks | None:
        data = os.pread(self._descriptor, _BYTES, 0)
        try:
            generation, due, groups = json.loads(data)
            return Marks(generation, due, {(kind, word, rank): (at, id_) for kind, word, rank, at, id_ in groups})
        except (ValueError, TypeError):
            return None  # empty; or whoever wrote it has died in the middle

    def _write(self, marks: Marks | None) -> None:
        data = b""
        if marks is not None:
            groups = [[*group, *position] for group, position in marks.groups.items()]
            data = json.dumps([marks.generation, marks.due, groups]).encode()
        try:
            os.ftruncate(self._descriptor, 0)  # so that no half of it can be taken for the whole
            os.pwrite(self._descriptor, data, 0)
        except OSError:
            pass  # no room: as if there were none

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def asked(wanted: JobSelector) -> dict[str, Any]:
    """The parameters of a query for the first rows of groups."""
    return {
        "wanted": list(wanted.types),
        "capabilities": wanted.capabilities,
        "least": at_least(LOWEST, wanted.min_priority),
    }


def _positions(wanted: JobSelector, rows: list[Row], clock: float, before: Marks | None) -> dict[Group, Position]:
    """Where to begin in each group from now on: with its first row, or where the next ones will be inserted. Groups
    that have emptied stay known.
    """
    late: Position = (clock - _LATE, 0)
    groups: dict[Group, Position] = {(kind, "", at_least(0, wanted.min_priority)): late for kind in wanted.types}
    found = {(kind, word, rank): min((at, id_), late) for kind, word, rank, at, id_ in rows}
    if before is not None and len(before.groups) + len(found) <= _GROUPS:
        groups |= dict.fromkeys(before.groups, late)
    return groups | found
