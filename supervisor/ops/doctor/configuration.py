"""The configuration on this machine: its files, who may read and change them, and whether its handlers can be used.

Every handler is imported in a process of its own, which runs this module. Programs are not started, because they would
load their models.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.config.pool_settings import PoolSettings
from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.schedule import Schedule
from supervisor.domain.text import human
from supervisor.ops.diagnosis import fault, warning
from supervisor.ops.views import Finding

if TYPE_CHECKING:
    from supervisor.config.problems import Report

Faults = list[tuple[tuple[str | int, ...], str]]
"""Paths of keys in a pool's table, or from `schedules` on, each with a problem."""

_TAIL = 300  # characters of what a child wrote before it died
_SECRET = re.compile(r"(?i)token|secret|passw|credential|api_?key|private")


def check_configuration(path: Path, database: str | None) -> Settings:
    """The settings, if there are no problems. Raises ConfigError with every problem, in the file's order."""
    from supervisor.config.reader import survey

    settings, report = survey(path, database)
    if problems := problems_here(settings, report):
        raise ConfigError(problems)
    return settings


def problems_here(settings: Settings, report: Report) -> list[str]:
    """Every problem of a configuration on this machine, with those of the file."""
    from supervisor.config.machine import report_missing
    from supervisor.config.reader import report_uninstalled
    from supervisor.engine import missing_driver
    from supervisor.ops import admin_files

    report_uninstalled(settings, report)
    if missing := missing_driver(settings.database):
        report.add(("database",), missing)
    if settings.admin is not None:
        for key, problem in admin_files.token_problems(settings.admin, make=False).items():
            report.add(("admin", key), problem)
    if problem := admin_files.upload_problem(settings):
        report.add(("spool", "folder"), problem)
    report_missing(settings, report)
    schedules = settings.schedules if not report.problems else ()  # otherwise they may be fewer than in the file
    for name, faults in broken_handlers(settings, schedules).items():
        known = [problem.text for problem in report.of_sources if problem.at[:2] == ("pools", name)]
        for at, text in faults:
            if at[0] == "schedules":
                report.add(at, text)
            elif not text.endswith(tuple(known)):  # a module that is missing has been found missing by its source
                report.add(("pools", name, *at), text)
    return report.sentences()


def untaken_jobs(settings: Settings) -> Iterator[Finding]:
    """Jobs that no pool of this configuration would take."""
    from supervisor.config.settings import untaken

    abouts = {"schedule": "schedules", "alert": "alerts", "follow_up": "types", "priority": "priorities"}
    for about, problem in untaken(settings):
        what = "do so" if about == "priority" else "correct the type or add a pool"
        yield warning(abouts[about], problem, f"{what}, unless another configuration has one")


def permissions(settings: Settings) -> Iterator[Finding]:
    """Who can write the configuration or handlers controls what runs; who can read them may learn secrets."""
    code = (folder for pool in settings.pools.values() for folder in pool.path if folder.exists())
    for path in dict.fromkeys((settings.path, settings.folder, *code)):
        if open_to_all(path):
            advice = f"chmod o-w {path}: a user who can write there controls what runs"
            yield fault("permissions", f"{path}: any user can write to it", advice)
    names = sorted({name for pool in settings.pools.values() for name in (*pool.env, *pool.options)})
    secret = [name for name in names if _SECRET.search(name)]
    if secret and settings.path.stat().st_mode & 0o004:
        fact = f"{settings.path}: every user of this machine can read it, including {', '.join(secret)}"
        yield warning("permissions", fact, f"chmod o= {settings.path}, or keep secrets in the unit's EnvironmentFile")


def open_to_all(path: Path) -> bool:
    """Whether any user can write there, and replace what others have written."""
    mode = path.stat().st_mode
    return bool(mode & 0o002 and not mode & 0o1000)


def broken_handlers(settings: Settings, schedules: Sequence[Schedule] = ()) -> dict[str, Faults]:
    """The problems of the handlers, by pool, and of the payloads that these schedules have for their tasks. Pools with
    the same handler, options and environment are checked once.
    """
    tried: dict[str, Faults] = {}
    found = {}
    for name, pool in settings.pools.items():
        if pool.handler or pool.middleware:  # otherwise a program, or reported as missing or malformed already
            payloads = [(n, one.type, one.payload) for n, one in enumerate(schedules) if one.type in pool.types]
            place = pool.path, settings.folder
            wanted = place, dict(pool.options), pool.handler, pool.batch_size > 1, pool.middleware, payloads
            key = repr((wanted, sorted(pool.env.items())))
            if key not in tried:
                tried[key] = _try(pool, settings.database, wanted)
            found[name] = tried[key]
    return {name: faults for name, faults in found.items() if faults}


def _try(pool: PoolSettings, database: str, wanted: tuple[Any, ...]) -> Faults:
    """Import one handler and its middleware as a worker would, and let it check the pool's options and the payloads."""
    from supervisor.system import signals
    from supervisor.worker.environment import SINGLE_THREADED

    env = {**SINGLE_THREADED, **os.environ, "SUPERVISOR_DATABASE": database, **pool.env}
    # Files, not pipes: a process left behind by the module would keep a pipe open.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as question:
        pickle.dump(wanted, question)
        question.seek(0)
        command = [sys.executable, "-P", "-m", "supervisor.ops.doctor.configuration", str(answer.fileno())]
        try:
            ran = subprocess.run(
                command,
                env=env,
                pass_fds=(answer.fileno(),),
                stdin=question,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=pool.startup_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            limit = human(pool.startup_timeout)
            return [(_key_of(pool.handler), f"importing {pool.handler} did not end within startup_timeout, {limit}")]
        answer.seek(0)
        output.seek(0)
        try:
            return [(tuple(at), text) for at, text in json.loads(answer.read())]
        except ValueError:
            said = " ".join(output.read().decode("utf-8", "replace").split())[-_TAIL:]
            ended = f"importing {pool.handler} ended the process ({signals.ending(ran.returncode)})"
            return [(_key_of(pool.handler), ended + (f": {said}" if said else ""))]


def _key_of(handler: str) -> tuple[str]:
    """The key of a pool that names it: tasks have only a module."""
    return ("handler",) if ":" in handler else ("tasks",)


def _answer() -> None:
    """The child. The answer goes to a separate descriptor, because the handler's module may print anything."""
    from supervisor.domain.middleware import MiddlewareError
    from supervisor.domain.middleware import load as load_middleware
    from supervisor.system import standard_streams
    from supervisor.worker.handler import HandlerError
    from supervisor.worker.loader import load, search_first

    standard_streams.make_safe()
    place, options, handler, batches, middleware, payloads = pickle.load(sys.stdin.buffer)  # noqa: S301 - our parent's
    search_first(*place)
    faults: Faults = []
    try:
        if handler:
            loaded = load(handler, batches=batches)
            loaded.check_options(options)
            refused = ((number, loaded.refusal(type_, json.loads(text))) for number, type_, text in payloads)
            faults += [(("schedules", number, "payload"), why) for number, why in refused if why]
    except HandlerError as error:
        found = [(("options", *at), text) for at, text in error.options] or [
            (_key_of(handler), " ".join(str(error).split()))
        ]
        faults += found
    for index, name in enumerate(middleware):
        try:
            load_middleware([name])
        except MiddlewareError as error:
            faults.append((("middleware", index), " ".join(str(error).split())))
    os.write(int(sys.argv[1]), json.dumps(faults).encode())


if __name__ == "__main__":
    _answer()
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads and exit handlers of the module: the answer is complete
