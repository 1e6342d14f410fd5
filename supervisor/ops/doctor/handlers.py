"""Whether the configuration is valid, every handler can be imported (each in a separate child process), and
every program exists. Programs are not started, because they would load their models."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.config.settings import PoolSettings, Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import human
from supervisor.engine import missing_driver
from supervisor.system import signals

if TYPE_CHECKING:
    from supervisor.config.problems import Report

Faults = list[tuple[tuple[str | int, ...], str]]
"""Paths of keys in a pool's table, each with a problem."""

_TAIL = 300  # characters of what a child wrote before it died


def check_configuration(path: Path, database: str | None) -> Settings:
    """The settings, if there are no problems. Raises ConfigError with every problem, in the file's order."""
    from supervisor.config.reader import report_uninstalled, survey
    from supervisor.ops import spool, tokens

    settings, report = survey(path, database)
    report_uninstalled(settings, report)
    if missing := missing_driver(settings.database):
        report.add(("database",), missing)
    for key, problem in tokens.problems(settings).items():
        report.add(("admin", key), problem)
    if problem := spool.problem(settings):
        report.add(("spool", "folder"), problem)
    _look_at_pools(settings, report)
    problems = report.sentences()
    if problems:
        raise ConfigError(problems)
    return settings


def problems_of_pools(settings: Settings, report: Report) -> list[str]:
    """The problems of the pools' handlers and programs, in a file without other problems."""
    _look_at_pools(settings, report)
    return report.sentences()


def _look_at_pools(settings: Settings, report: Report) -> None:
    from supervisor.config.machine import report_missing
    from supervisor.config.tasks import report_schedules

    report_missing(settings, report)
    if not report.problems:
        report_schedules(settings, report)
    for name, faults in broken_handlers(settings).items():
        known = [problem.text for problem in report.of_sources if problem.at[:2] == ("pools", name)]
        for at, text in faults:
            if not text.endswith(tuple(known)):  # a module that is missing has been found missing by its source
                report.add(("pools", name, *at), text)


def broken_handlers(settings: Settings) -> dict[str, Faults]:
    """The problems of the handlers, by pool. Pools with the same handler, options and environment are checked once."""
    tried: dict[str, Faults] = {}
    problems = {}
    for name, pool in settings.pools.items():
        if not pool.handler and not pool.middleware:
            continue  # a program, or reported as missing or malformed already
        key = repr(
            (pool.handler, pool.batch_size > 1, sorted(pool.env.items()), pool.path, pool.options, pool.middleware)
        )
        if key not in tried:
            tried[key] = _try(pool, settings)
        if tried[key]:
            problems[name] = tried[key]
    return problems


def _try(pool: PoolSettings, settings: Settings) -> Faults:
    """Import one handler and its middleware as a worker would, and let it check the pool's options."""
    # Files, not pipes: a process left behind by the module would keep a pipe open.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as options:
        module, how = "supervisor.ops.doctor.probe", "batch" if pool.batch_size > 1 else "one"
        pickle.dump((pool.path, settings.folder, dict(pool.options)), options)
        options.seek(0)
        try:
            ran = subprocess.run(
                [sys.executable, "-P", "-m", module, str(answer.fileno()), pool.handler or "-", how, *pool.middleware],
                env=_environment(pool.env, settings.database),
                pass_fds=(answer.fileno(),),
                stdin=options,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=pool.startup_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            limit = human(pool.startup_timeout)
            return _of_handler(pool, f"importing {pool.handler} did not end within startup_timeout, {limit}")
        answer.seek(0)
        output.seek(0)
        try:
            said = json.loads(answer.read())
        except ValueError:
            return _of_handler(pool, _died(pool.handler, ran.returncode, output.read()))
    faults: Faults = [(("middleware", index), text) for index, text in said["middleware"]]
    if said["options"]:
        return [(("options", *key), text) for key, text in said["options"]] + faults
    return (_of_handler(pool, said["problem"]) if said["problem"] else []) + faults


def _of_handler(pool: PoolSettings, problem: str) -> Faults:
    return [(("handler" if ":" in pool.handler else "tasks",), problem)]


def _environment(env: Mapping[str, str], database: str) -> dict[str, str]:
    from supervisor.worker.environment import SINGLE_THREADED

    return {**SINGLE_THREADED, **os.environ, "SUPERVISOR_DATABASE": database, **env}


def _died(handler: str, code: int, output: bytes) -> str:
    said = " ".join(output.decode("utf-8", "replace").split())[-_TAIL:]
    return f"importing {handler} ended the process ({signals.ending(code)})" + (f": {said}" if said else "")
