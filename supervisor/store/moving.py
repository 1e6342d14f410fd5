"""What `supervisor move` needs of an engine, and what it notes in a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

# The keys of job_meta. At the source: where the jobs go, and where they have gone. At the target: how far the move is,
# and whence the jobs came. Last, never committed: that this transaction may write.
CLOSED_FOR, MOVED_TO, ARRIVING, MOVED_FROM, MOVE_WRITER = MOVE_KEYS = (
    "closed_for",
    "moved_to",
    "arriving",
    "moved_from",
    "move_writer",
)


class MoveWords:
    """What whoever changes jobs is told: at the source, with the target's URL, and at the target."""

    CLOSED = "the jobs are being moved to {}; try again when that is done, or repeat `supervisor move`"
    MOVED = "the jobs were moved to {}; use that URL"
    OPENING = "jobs are being moved here; try again when that is done, or repeat `supervisor move`"


Key = Sequence[object]
"""A row's values in the columns of a table's key."""


class Unfit(NamedTuple):
    """Why a row cannot be stored in another engine: what is in which column."""

    column: str
    problem: str


class MoveRows(Protocol):
    """The rows of one side of a move, table by table, in the order of a key."""

    def columns(self, table: str) -> list[str]: ...

    def count(self, table: str) -> int: ...

    def block(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str],
        after: Key | None,
        *,
        until: Key | None = None,
        limit: int,
    ) -> list[tuple[Any, ...]]:
        """The first rows behind a key, or from the beginning on."""

    def present(self, ids: Collection[int]) -> set[int]:
        """Those of these ids that jobs have."""

    def fitted(self, table: str, columns: Sequence[str], row: tuple[Any, ...]) -> tuple[Any, ...] | Unfit:
        """The row as it is stored here, or why that is impossible."""

    def refusal(self, table: str, key: Sequence[str], columns: Sequence[str], row: tuple[Any, ...]) -> str:
        """Why the tables refuse a row; empty if they accept it. Nothing is changed."""

    def replace(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        *,
        after: Key | None,
        until: Key | None,
        notes: Mapping[str, str | None],
    ) -> None:
        """Put these rows in the place of all behind `after`, up to `until`, and note that; in one transaction, also
        while the tables are shut. Raises RowRefused.
        """


class MoveEnd(MoveRows, Protocol):
    """One side of a move: the URL `shown` has no password. `notes` are stored in job_meta; None removes one."""

    @property
    def shown(self) -> str: ...

    def flags(self) -> dict[str, str]: ...

    def epoch(self) -> str:
        """Names this life of the database."""

    def running(self) -> list[str]:
        """The supervisors that run on this database, or may do so."""

    def sequences(self) -> dict[str, int]:
        """The greatest ids that were given, by table."""

    def shut(self, message: str, notes: Mapping[str, str | None]) -> list[str]:
        """From now on everybody who changes jobs gets this message. Not if supervisors run: returns them."""

    def open(self, sequences: Mapping[str, int], notes: Mapping[str, str | None]) -> None:
        """The end of that. The sequences continue behind these ids."""

    def close(self) -> None: ...
