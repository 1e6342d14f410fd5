"""Leftovers of dead processes, clock changes and old jobs, in the database and beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import supervisor
from supervisor.config.settings import Settings
from supervisor.domain.duration import human, human_size
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Status
from supervisor.ops.doctor import clock
from supervisor.ops.doctor.finding import Finding, fault, good, note, warning
from supervisor.ops.status import text_of
from supervisor.ops.views import SENTENCE
from supervisor.store.base import Engine, Operations, SupervisorRecord
from supervisor.system.scoreboard import Scoreboard

_LATE = 60.0  # seconds after which an expired claim should have been reclaimed; also the tolerance for clocks
_MOST_NAMED = 20  # types and pools that a finding names
_SLACK = 86400.0  # seconds past retention after which the pruner must have run


def inside(engine: Engine, settings: Settings | None) -> Iterator[Finding]:
    try:
        operations = engine.operations()
    except StoreError as error:
        yield fault("database", str(error), "see the error; nothing was changed")
        return
    try:
        counts = _counts(operations)
        yield good("database", f"the schema is current, {_jobs_that(counts[Status.PENDING], 'is', 'are')} pending")
        supervisors = operations.registry.supervisors()
        living = {record.id: record for record in supervisors if operations.registry.owner_lives(record) is not False}
        left = [*_supervisors(engine, supervisors, living), *_rows(operations, settings, living)]
        yield from left
        if not any(finding.about == "leftovers" for finding in left):
            yield good("leftovers", "none")
        yield from _jobs(operations, settings, counts)
    finally:
        operations.close()


def _counts(operations: Operations) -> dict[Status, int]:
    totals = dict.fromkeys(Status, 0)
    for _, status, count in operations.statistics.counts():
        totals[status] += count
    return totals


def _supervisors(
    engine: Engine, supervisors: list[SupervisorRecord], living: dict[str, SupervisorRecord]
) -> Iterator[Finding]:
    dead = [record for record in supervisors if record.id not in living]
    if dead:
        pids = ", ".join(str(record.pid) for record in dead)
        yield note(
            "leftovers",
            f"supervisors that ended unexpectedly: {pids}",
            "no action needed: the next supervisor to run recovers their jobs",
        )
    ours = [Path(path).name for record in supervisors for path in (record.owner_lock, record.scoreboard)]
    # Other files of a scoreboard have its name with a suffix.
    stray = [path for path in _stray_files(engine.database.folder) if not path.name.startswith(tuple(ours))]
    if stray:
        yield note(
            "leftovers",
            f"files of supervisors that have ended: {_named(stray)}",
            f"delete them from {engine.database.folder} while no supervisor is starting",
        )
    for record in living.values():
        yield from _living(record)


def _living(record: SupervisorRecord) -> Iterator[Finding]:
    if record.version != supervisor.__version__:
        yield note(
            "supervisors",
            f"supervisor {record.pid} has version {text_of(record.version)}, this is {supervisor.__version__}",
            "restart it at a convenient time: running jobs can finish",
        )
    board = Scoreboard.open(Path(record.scoreboard))
    if board is None:
        advice = "run `supervisor doctor` and `supervisor status` as the user of the service, and in its version"
        yield note("supervisors", f"supervisor {record.pid} is running, but its workers are not visible", advice)
    else:
        yield from _pools(record.pid, board.supervisor_status().get("pools", {}))


def _pools(supervisor: int, pools: Mapping[str, Any]) -> Iterator[Finding]:
    """The pools of a running supervisor that have problems."""
    for name, news in pools.items():
        problem = text_of(news["problem"] or "", SENTENCE)
        if problem and news.get("broken", True):
            fact = f"{name} of supervisor {supervisor} cannot start its workers: {problem}"
            yield fault("pools", fact, "fix it, then run `supervisor reload`; until then its jobs wait")
        elif problem:
            yield warning(
                "pools", f"{name} of supervisor {supervisor}: {problem}", "fix it, then run `supervisor reload`"
            )


def _stray_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("owner-*.lock"), *folder.glob("scoreboard-*")]) if folder.is_dir() else []


def _rows(operations: Operations, settings: Settings | None, living: dict[str, SupervisorRecord]) -> Iterator[Finding]:
    now = time.time()
    found = operations.statistics.anomalies(now, _LATE, *_retention(settings, now))
    abandoned = sum(count for owner, count in found.held.items() if owner not in living)
    start = "" if living else "start a supervisor: "
    if abandoned:
        yield note(
            "leftovers",
            f"{_jobs_that(abandoned, 'is', 'are')} still running in workers that have ended",
            f"{start}a supervisor that starts recovers them immediately, a running one within its lock_time",
        )
    if found.expired:
        yield warning(
            "leftovers",
            f"{_jobs_that(found.expired, 'has a claim', 'have claims')} that expired over {human(_LATE)} ago",
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
            f"{_jobs_that(found.overdue, 'is', 'are')} a day past retention",
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


def _jobs(operations: Operations, settings: Settings | None, counts: dict[Status, int]) -> Iterator[Finding]:
    if quarantined := counts[Status.QUARANTINED]:
        jobs, them = _jobs_that(quarantined, "is", "are"), "it" if quarantined == 1 else "them"
        yield warning(
            "jobs",
            f"{jobs} quarantined because workers died while running {them}",
            "`supervisor jobs list --status quarantined` and `jobs show ID` show them; `jobs retry ID` retries one",
        )
    controls = operations.controls.current()
    if controls.paused:
        yield note("jobs", f"paused: {_some(controls.paused)}", "`supervisor resume TYPE` resumes a type")
    if settings is None:
        return
    handled = {type_ for pool in settings.pools.values() for type_ in pool.types}
    unhandled = operations.backlog.unhandled(handled)
    if unhandled:
        yield warning(
            "jobs",
            f"jobs are pending for types that no pool of this configuration takes: {_some(unhandled)}",
            "add a pool or cancel the jobs, unless a supervisor with another configuration takes them",
        )
    unknown = set(controls.sizes) - set(settings.pools)
    if unknown:
        yield note(
            "jobs",
            f"sizes are set for pools that are not in this configuration: {_some(unknown)}",
            "`supervisor scale POOL auto` removes one",
        )


def _some(names: Iterable[object]) -> str:
    """The first of these names. Rows may hold any number of names of any length."""
    known = sorted({text_of(name) for name in names})
    return ", ".join(known[:_MOST_NAMED]) + (
        f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    )


def _jobs_that(count: int, one: str, more: str) -> str:
    return f"1 job {one}" if count == 1 else f"{count} jobs {more}"


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
