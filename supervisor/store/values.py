"""Values of taking over a table and of restoring a copy, and the names of all tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TABLES = frozenset(
    {
        "job_batch_limits",
        "job_controls",
        "job_errors",
        "job_history",
        "job_meta",
        "job_runs",
        "job_schedules",
        "job_second_chances",
        "job_supervisors",
        "job_workers",
        "jobs",
    }
)
"""All tables of the schema, for tools that would take them for leftovers."""


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """How an application's table is to be understood; whatever is left out is proposed.

    `renames` are {column: new name or meaning}, `statuses` {word: state}, `types` {old: new}. `statements` are the
    application's, to be tried. `view` is the name of the view for statements in the old words.
    """

    table: str = "jobs"
    renames: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    view: str = ""


@dataclass(frozen=True, slots=True)
class NeedsChange:
    """A statement of an application that its adopted table refuses, and why."""

    statement: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptedColumn:
    """What becomes of a column: `kept_as` is where the application's values stand, `meaning` the column of a job that
    takes them over, if any. `proposed`: no option said so.
    """

    column: str
    kept_as: str
    meaning: str | None
    proposed: bool


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """The result of taking over a table, or of its rehearsal, which has no `backup`.

    `recovered` are running rows put back; `extra_columns` are the application's own. `job_types` are the most frequent
    ones.
    """

    rows: int
    recovered: int
    finished: int
    backup: Path | None
    extra_columns: tuple[str, ...]
    notes: tuple[str, ...]
    needing_change: tuple[NeedsChange, ...]
    columns: tuple[AdoptedColumn, ...]
    statuses: Mapping[str, str]
    types: Mapping[str, str]
    job_types: tuple[str, ...]
    view: str | None


class RestoreReport(NamedTuple):
    """The result of restoring a copy. `kept` is the new path of the previous database, if there was one."""

    jobs: int
    schema: int
    kept: Path | None
