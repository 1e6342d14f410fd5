"""Whether the configuration is right, every handler can be imported, each tried in a child of its own, and
every program is there. Programs are not started: they would load their models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.duration import human
from supervisor.domain.errors import ConfigError

_TAIL = 300  # characters of what a child wrote before it died


def check_configuration(path: Path, database: str | None) -> Settings:
    """The settings, if nothing at all is wrong. Raises ConfigError with every fault, in the file's order."""
    from supervisor import access
    from supervisor.config import admin, cores
    from supervisor.config.programs import report_missing
    from supervisor.config.reader import survey

    found = survey(path, database)
    report_missing(found.settings, found.report, ())
    cores.report_absent(found.settings, found.report, ())
    admin.report_uninstalled(found.settings, found.report)
    for key, problem in access.problems(found.settings).items():
        found.report.add(("admin", key), problem)
    for name, problem in broken_handlers(found.settings).items():
        found.report.add(("pools", name, "handler"), problem)
    problems = found.problems()
    if problems:
        raise ConfigError(problems)
    return found.settings


def broken_handlers(settings: Settings) -> dict[str, str]:
    """What is wrong with the handlers, by pool. Pools that share handler and environment share one try."""
    tried: dict[tuple[str, bool, tuple[tuple[str, str], ...]], str] = {}
    problems = {}
    for name, pool in settings.pools.items():
        if not pool.handler:
            continue  # a program, or reported as missing or malformed already
        key = (pool.handler, pool.batch_size > 1, tuple(sorted(pool.env.items())))
        if key not in tried:
            tried[key] = _try(pool, settings.folder)
        if tried[key]:
            problems[name] = tried[key]
    return problems


def _try(pool: PoolSettings, folder: Path) -> str:
    """Import one handler as a worker would: an empty text, or what is wrong with it."""
    # Files, not pipes: a process that the module leaves behind would hold a pipe open.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output:
        module, how = "supervisor.doctor.probe", "batch" if pool.batch_size > 1 else "one"
        try:
            ran = subprocess.run(
                [sys.executable, "-P", "-m", module, str(answer.fileno()), str(folder), pool.handler, how],
                env=_environment(pool.env),
                pass_fds=(answer.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=pool.startup_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"importing {pool.handler} did not end within startup_timeout, {human(pool.startup_timeout)}"
        answer.seek(0)
        output.seek(0)
        try:
            return str(json.loads(answer.read())["problem"])
        except ValueError:
            return _died(pool.handler, ran.returncode, output.read())


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    from supervisor.worker.environment import SINGLE_THREADED

    return {**SINGLE_THREADED, **os.environ, **env}


def _died(handler: str, code: int, output: bytes) -> str:
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    said = " ".join(output.decode("utf-8", "replace").split())[-_TAIL:]
    return f"importing {handler} ended the process ({how})" + (f": {said}" if said else "")
