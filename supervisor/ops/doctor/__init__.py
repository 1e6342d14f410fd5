"""The checks of `doctor` and `check`: a function each, by subject: the machine, the configuration, the database, and
what the supervisor works with. Each states a fact and, unless all is well, what to do about it.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.domain.errors import ConfigError, QueueError
from supervisor.ops.diagnosis import fault, good
from supervisor.ops.views import Finding


def examine(config: Path | None, database: str | None) -> list[Finding]:
    """Every finding, in the order of the checks. A check that cannot run is a finding, never an error."""
    from supervisor.config import locate
    from supervisor.config.checks import of_server
    from supervisor.config.machine import own_host, runs_on
    from supervisor.config.reader import survey
    from supervisor.ops.doctor import configuration, machine, services
    from supervisor.ops.doctor.database import examine as examine_database

    found = [machine.interpreter(), machine.names()]
    url, settings, problems = database, None, list[str]()
    try:
        read, report = survey(locate(config), database)
        url = database if report.has(("database",)) else read.database
        settings = None if report.sentences() else read
        problems = configuration.problems_here(read, report)
    except ConfigError as error:
        problems = error.problems
    if not of_server(url):
        found.insert(1, machine.sqlite_library())
    if config is not None or database is None:  # otherwise the database alone is meant
        advice = "fix it; a supervisor that is running takes it up with `supervisor reload`"
        found += [fault("configuration", problem, advice) for problem in problems]
    if settings is not None:
        if not problems:
            found.append(good("configuration", f"{settings.path} is valid, and its handlers can be used"))
        found += configuration.untaken_jobs(settings)
        host = own_host(settings.database)
        here = settings._replace(pools={name: pool for name, pool in settings.pools.items() if runs_on(pool, host)})
        for check in (machine.memory, machine.limits, machine.gpus, configuration.permissions, services.systemd):
            try:
                found += check(here)
            except OSError as error:
                found.append(fault(check.__name__, str(error), "run `supervisor doctor` as the user of the service"))
    if url:
        try:
            found += examine_database(url, settings)
        except (QueueError, OSError) as error:
            advice = "fix this first, then run `supervisor doctor` again for the other checks"
            found.append(fault("database", str(error), advice))
    return found
