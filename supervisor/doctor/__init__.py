"""What `doctor` and `check` find, a file a subject: the environment, the clock, memory, GPUs, limits, the systemd
unit, `[admin]`, the database's place, what was left there, and the handlers.

A finding says what is so and, unless all is well, what to do about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.doctor.finding import Finding, fault, good, note, warning
from supervisor.domain.errors import ConfigError, QueueError

if TYPE_CHECKING:
    from supervisor.config import Settings

__all__ = ["Finding", "examine", "fault", "good", "note", "warning"]


def examine(config: Path | None, database: str | None) -> list[Finding]:
    """Every finding, in the order of the checks. A check that cannot be made is a finding, never an error."""
    from supervisor.config import load, locate
    from supervisor.doctor import clock, environment, place

    found = [environment.interpreter(), environment.sqlite_library(), environment.names(), clock.shown()]
    if (other := environment.other_sqlite()) is not None:
        found.append(other)
    url, settings = database, None
    try:
        settings = load(locate(config), database=database)
    except ConfigError as error:
        if config is not None or database is None:
            found.append(_unloadable(error))
    if settings is not None:
        found.append(good("configuration", f"{settings.path} is valid"))
        found += _configured(settings)
        url = settings.database
    if url is not None:
        try:
            found += place.examine(url, settings)
        except (QueueError, OSError) as error:
            found.append(fault("database", str(error), "mend this first; `supervisor doctor` then sees more"))
    return found


def _configured(settings: Settings) -> list[Finding]:
    """What only a configuration tells to look at."""
    from supervisor.doctor import admin, gpus, limits, memory, place, service

    return [
        memory.memory(settings),
        *limits.limits(settings),
        *gpus.gpus(settings),
        *place.configuration(settings),
        *place.runtime_folder(),
        *admin.admin(settings),
        *service.service(settings),
    ]


def _unloadable(error: ConfigError) -> Finding:
    if len(error.problems) == 1:
        return fault("configuration", error.problems[0], "`supervisor check` looks at its handlers as well")
    first = f"{len(error.problems)} faults, the first: {error.problems[0]}"
    return fault("configuration", first, "`supervisor check` lists them all")
