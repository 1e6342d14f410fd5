"""What `doctor` and `check` find: the environment, the database's place, and the handlers.

A finding says what is so and, unless all is well, what to do about it.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.doctor.finding import Finding, fault, good, note, warning
from supervisor.domain.errors import ConfigError, QueueError

__all__ = ["Finding", "examine", "fault", "good", "note", "warning"]


def examine(config: Path | None, database: str | None) -> list[Finding]:
    """Every finding, in the order of the checks. A check that cannot be made is a finding, never an error."""
    from supervisor.config import load, locate
    from supervisor.doctor import environment, place

    found = [
        environment.interpreter(),
        environment.sqlite_library(),
        environment.names(),
        environment.clock(),
    ]
    url, settings = database, None
    try:
        settings = load(locate(config), database=database)
    except ConfigError as error:
        if config is not None or database is None:
            found.append(_unloadable(error))
    if settings is not None:
        found.append(good("configuration", f"{settings.path} is valid"))
        found.append(environment.memory(settings))
        url = settings.database
    if url is not None:
        try:
            found += place.examine(url)
        except (QueueError, OSError) as error:
            found.append(fault("database", str(error), "mend this first; `supervisor doctor` then sees more"))
    return found


def _unloadable(error: ConfigError) -> Finding:
    if len(error.problems) == 1:
        return fault("configuration", error.problems[0], "`supervisor check` looks at its handlers as well")
    first = f"{len(error.problems)} faults, the first: {error.problems[0]}"
    return fault("configuration", first, "`supervisor check` lists them all")
