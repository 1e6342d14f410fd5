"""What dead programs, the clock and time have left: in the database and beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import supervisor
from supervisor.config.settings import Settings
from supervisor.domain.duration import human_size
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Status
from supervisor.ops.doctor import clock
from supervisor.ops.doctor.finding import Finding, fault, good, note, warning
from supervisor.ops.status import text_of
from supervisor.ops.views import SENTENCE
from supervisor.store.base import Engine, Operations, SupervisorRecord
from supervisor.system.scoreboard import Scoreboard

_LATE = 60.0  # seconds after which an expired claim should have been taken back, and clocks should agree
_MOST_NAMED = 20  # types and pools that a finding names
_SLACK = 86400.0  # seconds past retention after which the pruner must have come by


def inside(engine: Engine, settings: Settings | None) -> Iterator[Finding]:
    try:
        operations = engine.operations()
    except StoreError as error:
        yield fault("database", str(error), "see the message; nothing was changed")
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
            f"supervisors that did not end properly: {pids}",
            "nothing to do: the next supervisor that runs takes their jobs back",
        )
    ours = [Path(path).name for record in supervisors for path in (record.owner_lock, record.scoreboard)]
    # Beside a scoreboard lie others of its name, with something behind it.
    stray = [path for path in _stray_files(engine.database.folder) if not path.name.startswith(tuple(ours))]
    if stray:
        yield note(
            "leftovers",
            f"files of supervisors that are gone: {_named(stray)}",
            f"delete them from {engine.database.folder} while no supervisor is starting",
        )
    for record in living.values():
        yield from _living(record)


def _living(record: SupervisorRecord) -> Iterator[Finding]:
    if record.version != supervisor.__version__:
        yield note(
            "supervisors",
            f"supervisor {record.pid} is of version {text_of(record.version)}, this is {supervisor.__version__}",
            "restart it when it suits you: running jobs may finish",
        )
    board = Scoreboard.open(Path(record.scoreboard))
    if board is None:
        advice = "run this, and `status`, as the user of the service"
        yield note("supervisors", f"supervisor {record.pid} runs, but this user may not see its workers", advice)
    else:
        yield from _pools(record.pid, board.supervisor_status().get("pools", {}))


def _pools(supervisor: int, pools: Mapping[str, Any]) -> Iterator[Finding]:
    """Those of a living supervisor that cannot do their work."""
    for name, news in pools.items():
        problem = text_of(news["problem"] or "", SENTENCE)
        if problem and news.get("broken", True):
            fact = f"{name} of supervisor {supervisor} cannot start its workers: {problem}"
            yield fault("pools", fact, "correct it, then `supervisor reload`; until then its jobs wait")
        elif problem:
            yield warning(
                "pools", f"{name} of supervisor {supervisor}: {problem}", "correct it, then `supervisor reload`"
            )


def _stray_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("owner-*.lock"), *folder.glob("scoreboard-*")]) if folder.is_dir() else []


def _rows(operations: Operations, settings: Settings | None, living: dict[str, SupervisorRecord]) -> Iterator[Finding]:
    now = time.time()
    found = operations.statistics.anomalies(now, _LATE, *_retention(settings, now))
    abandoned = sum(count for owner, count in found.held.items() if owner not in living)
    nobody = "" if living else "start a supervisor: "
    if abandoned:
        yield note(
            "leftovers",
            f"{_jobs_that(abandoned, 'is', 'are')} running for workers that are gone",
            f"{nobody}the next one to start takes them back at once, a living one within its lock_time",
        )
    if found.expired:
        yield warning(
            "leftovers",
            f"{_jobs_that(found.expired, 'has a claim', 'have claims')} that ran out over {_LATE:.0f} s ago",
            f"{nobody}it takes them back; if one runs, `supervisor status` says what hinders it",
        )
    if found.orphans:
        yield note(
            "leftovers",
            f"{found.orphans} rows in job_errors or job_runs without their job, deleted with foreign keys off",
            "nothing to do: a running supervisor deletes them in time",
        )
    if found.overdue:
        yield note(
            "leftovers",
            f"{_jobs_that(found.overdue, 'is', 'are')} a day past retention",
            f"{nobody}it deletes them bit by bit; `supervisor purge --older-than …` does it at once",
        )
    if (back := clock.went_back(found.future, _LATE)) is not None:
        yield back


def _retention(settings: Settings | None, now: float) -> tuple[float, float]:
    """Before when done and failed jobs should be gone; 0 where nobody can tell, or they are kept for ever."""
    if settings is None:
        return 0.0, 0.0
    done, failed = (
        0.0 if kept is None else now - kept - _SLACK for kept in (settings.retention.done, settings.retention.failed)
    )
    return done, failed


def _jobs(operations: Operations, settings: Settings | None, counts: dict[Status, int]) -> Iterator[Finding]:
    if counts[Status.QUARANTINED]:
        yield warning(
            "jobs",
            f"{_jobs_that(counts[Status.QUARANTINED], 'is', 'are')} quarantined: their workers died again and again",
            "`supervisor jobs list --status quarantined` and `jobs show ID` say how; `jobs retry ID` tries again",
        )
    controls = operations.controls.current()
    if controls.paused:
        yield note("jobs", f"paused: {_some(controls.paused)}", "`supervisor resume TYPE` lets them go on")
    if settings is None:
        return
    handled = {type_ for pool in settings.pools.values() for type_ in pool.types}
    unhandled = operations.backlog.unhandled(handled)
    if unhandled:
        yield warning(
            "jobs",
            f"no pool of this configuration takes {_some(unhandled)}, of which jobs are pending",
            "add a pool, or cancel them; another configuration's supervisor may take them",
        )
    strangers = set(controls.sizes) - set(settings.pools)
    if strangers:
        yield note(
            "jobs",
            f"sizes are set for pools that are not in this configuration: {_some(strangers)}",
            "`supervisor scale POOL auto` forgets one",
        )


def _some(names: Iterable[object]) -> str:
    """The first of these names, which rows may hold in any number and of any length."""
    known = sorted({text_of(name) for name in names})
    return ", ".join(known[:_MOST_NAMED]) + (
        f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    )


def _jobs_that(count: int, one: str, more: str) -> str:
    return f"1 job {one}" if count == 1 else f"{count} jobs {more}"


def copies(database: Path) -> Iterator[Finding]:
    """Copies that upgrades, adoptions and restores have kept, and halves of those that were killed."""
    kept = sorted(database.parent.glob(f"{_literal(database.name)}.before-*"))
    if kept:
        size = human_size(sum(path.stat().st_size for path in kept))
        yield note("copies", f"{len(kept)} kept beside the database, {size}: {_named(kept)}", "delete those not needed")
    partial = f".*{_literal(database.name)}*.partial-*", f".{_literal(database.name)}.restore-*"
    halves = sorted(path for pattern in partial for path in database.parent.glob(pattern))
    if halves:
        advice = "delete them while no backup, migration or restore runs"
        yield note("copies", f"of copies that were broken off: {_named(halves)}", advice)


def _literal(name: str) -> str:
    """A name in which no sign is a pattern."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _named(paths: list[Path]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(path.name for path in paths[:5]) + more
