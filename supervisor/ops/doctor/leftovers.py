"""Leftovers of dead processes, clock changes and old jobs, in the database and beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError
from supervisor.domain.text import counted, human, human_size, text_of
from supervisor.ops.diagnosis import Finding, diagnose, fault, good, note, warning
from supervisor.ops.doctor import clock
from supervisor.ops.status import gather
from supervisor.store.base import Engine, Operations, SupervisorRecord

_LATE = 60.0  # seconds after which an expired claim should have been reclaimed; also the tolerance for clocks
_MOST_NAMED = 20  # types and pools that a finding names
_SLACK = 86400.0  # seconds past retention after which the pruner must have run


def inside(engine: Engine, settings: Settings | None) -> Iterator[Finding]:
    try:
        operations = engine.operations()
    except StoreError as error:
        yield fault("database", str(error), "see the error; nothing was changed")
        return
    with closing(operations):
        configured = () if settings is None else settings.pools.values()
        seen = gather(engine, operations, configured=configured)
        yield good("database", f"the schema is current, {counted(seen.jobs['pending'], 'job is', 'jobs are')} pending")
        # The doctor is also asked before the supervisor is started.
        left = [finding for finding in diagnose(seen) if finding.name != "no_supervisor"]
        living = {one.id for one in seen.supervisors if one.alive is not False}
        left += [*_strays(engine, operations.registry.supervisors()), *_rows(operations, settings, living)]
        yield from left
        if not any(finding.about == "leftovers" for finding in left):
            yield good("leftovers", "none")
        unknown = set() if settings is None else operations.controls.current().sizes.keys() - settings.pools.keys()
        if unknown:
            yield note(
                "jobs",
                f"sizes are set for pools that are not in this configuration: {_some(unknown)}",
                "`supervisor scale POOL auto` removes one",
            )


def _strays(engine: Engine, supervisors: list[SupervisorRecord]) -> Iterator[Finding]:
    folder = engine.database.folder
    ours = [Path(path).name for record in supervisors for path in (record.owner_lock, record.scoreboard)]
    # Other files of a scoreboard have its name with a suffix.
    found = sorted([*folder.glob("owner-*.lock"), *folder.glob("scoreboard-*")]) if folder.is_dir() else []
    stray = [path for path in found if not path.name.startswith(tuple(ours))]
    if stray:
        yield note(
            "leftovers",
            f"files of supervisors that have ended: {_named(stray)}",
            f"delete them from {folder} while no supervisor is starting",
        )


def _rows(operations: Operations, settings: Settings | None, living: set[str]) -> Iterator[Finding]:
    now = operations.statistics.now()
    found = operations.statistics.anomalies(now, _LATE, *_retention(settings, now))
    abandoned = sum(count for owner, count in found.held.items() if owner not in living)
    start = "" if living else "start a supervisor: "
    if abandoned:
        yield note(
            "leftovers",
            f"{counted(abandoned, 'job is', 'jobs are')} still running in workers that have ended",
            f"{start}a supervisor that starts recovers them immediately, a running one within its lock_time",
        )
    if found.expired:
        yield warning(
            "leftovers",
            f"{counted(found.expired, 'job has a claim', 'jobs have claims')} that expired over {human(_LATE)} ago",
            f"{start}it reclaims them; if one is running, see `supervisor status` for its problem",
        )
    if found.orphans:
        yield note(
            "leftovers",
            f"{found.orphans} rows in job_errors or job_runs without their job, deleted with foreign keys off",
            "no action needed: a running supervisor deletes them eventually",
        )
    if found.overdue:
        yield note(
            "leftovers",
            f"{counted(found.overdue, 'job is', 'jobs are')} a day past retention",
            f"{start}it deletes them in small steps; `supervisor purge --older-than …` deletes them immediately",
        )
    if (back := clock.went_back(found.future, _LATE)) is not None:
        yield back


def _retention(settings: Settings | None, now: float) -> tuple[float, float]:
    """Times before which done and failed jobs should have been deleted; 0 if unknown or if they are kept."""
    if settings is None:
        return 0.0, 0.0
    done, failed = (
        0.0 if kept is None else now - kept - _SLACK for kept in (settings.retention.done, settings.retention.failed)
    )
    return done, failed


def _some(names: Iterable[object]) -> str:
    """The first of these names. Rows may hold any number of names of any length."""
    known = sorted({text_of(name) for name in names})
    return ", ".join(known[:_MOST_NAMED]) + (
        f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    )


def copies(database: Path) -> Iterator[Finding]:
    """Copies kept by upgrades, adoptions and restores, and incomplete copies of interrupted ones."""
    kept = sorted(database.parent.glob(f"{_literal(database.name)}.before-*"))
    if kept:
        size = human_size(sum(path.stat().st_size for path in kept))
        yield note(
            "copies", f"{len(kept)} kept beside the database, {size}: {_named(kept)}", "delete those you do not need"
        )
    partial = f".*{_literal(database.name)}*.partial-*", f".{_literal(database.name)}.restore-*"
    halves = sorted(path for pattern in partial for path in database.parent.glob(pattern))
    if halves:
        advice = "delete them while no backup, migration or restore is running"
        yield note("copies", f"incomplete copies: {_named(halves)}", advice)


def _literal(name: str) -> str:
    """The name with pattern characters escaped."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _named(paths: list[Path]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(path.name for path in paths[:5]) + more
