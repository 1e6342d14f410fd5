"""The checks of `doctor` and `check`, one file per subject: the environment, the clock, memory, GPUs, limits, the
systemd unit, `[admin]`, the database's location, leftovers there, and the handlers.

A finding states a fact and, unless it is OK, what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.domain.errors import ConfigError, QueueError
from supervisor.ops.diagnosis import Finding, fault, good, warning

if TYPE_CHECKING:
    from supervisor.config.problems import Report
    from supervisor.config.settings import Settings


def examine(config: Path | None, database: str | None) -> list[Finding]:
    """Every finding, in the order of the checks. A check that cannot run is a finding, never an error."""
    from supervisor.config import locate
    from supervisor.config.reader import survey
    from supervisor.ops.doctor import clock, environment, place

    found = [environment.interpreter(), environment.names(), clock.shown()]
    url, settings, problems = database, None, list[str]()
    try:
        read, report = survey(locate(config), database)
        url, problems = read.database or database, report.sentences()
        if not problems:
            settings = read
            found.append(good("configuration", f"{settings.path} is valid"))
            found += _configured(settings, report)
    except ConfigError as error:
        problems = error.problems
    if config is not None or database is None:  # otherwise the database alone is meant
        advice = "fix it; `supervisor check` also checks the handlers"
        found += [fault("configuration", problem, advice) for problem in problems]
    if not (url or "").startswith(("postgresql:", "postgres:")):
        found[1:1] = filter(None, (environment.sqlite_library(), environment.other_sqlite()))
    if url:
        try:
            found += place.examine(url, settings)
        except (QueueError, OSError) as error:
            found.append(
                fault("database", str(error), "fix this first, then run `supervisor doctor` again for the other checks")
            )
    return found


def _configured(settings: Settings, report: Report) -> list[Finding]:
    """The checks that need a configuration."""
    from supervisor.config.machine import own_host, runs_on
    from supervisor.ops.doctor import admin, gpus, limits, memory, place, service

    host = own_host(settings.database)
    here = settings._replace(pools={name: pool for name, pool in settings.pools.items() if runs_on(pool, host)})

    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "handlers": lambda: _handlers(settings, report),
        "memory": lambda: [memory.memory(here)],
        "limits": lambda: limits.limits(here),
        "gpus": lambda: gpus.gpus(here),
        "permissions": lambda: [*place.configuration(settings), *place.runtime_folder()],
        "admin": lambda: admin.admin(settings),
        "systemd": lambda: service.service(settings),
    }
    return [finding for about, look in looks.items() for finding in _looked(about, look)]


def _looked(about: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check. If this user lacks a permission, that is also a finding."""
    try:
        return list(look())
    except OSError as error:
        what = error.strerror or str(error)
        fact = f"{error.filename}: {what}" if error.filename is not None else what
        return [fault(about, fact, "run `supervisor doctor` as the user of the service")]


def _handlers(settings: Settings, report: Report) -> Iterator[Finding]:
    """The same as `supervisor check` finds."""
    from supervisor.config.settings import untaken
    from supervisor.config.tasks import untaken_tasks
    from supervisor.ops.doctor.handlers import problems_of_pools

    problems = problems_of_pools(settings, report)
    for problem in problems:
        yield fault("handlers", problem, "fix it; a supervisor that is running takes it up with `supervisor reload`")
    if not problems:
        yield good("handlers", f"the handlers of {', '.join(settings.pools)} can be used")
    for about, problem in untaken(settings):
        what = "do so" if about == "priority" else "correct the type or add a pool"
        abouts = {"schedule": "schedules", "alert": "alerts", "priority": "priorities"}
        yield warning(abouts[about], problem, f"{what}, unless another configuration has one")
    for problem in untaken_tasks(settings):
        yield warning("tasks", problem, "add the type to `types` of a pool, unless another configuration has it")
