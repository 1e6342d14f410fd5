"""`init`, `check` and `doctor`: commands to use before the supervisor runs."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, USAGE
from supervisor.cli.options import Answer, Target, answering, as_json
from supervisor.cli.output import show, table

_STARTER = Path(__file__).with_name("starter")  # a commented configuration, and a module with a task


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), default=Path())
@as_json
def init(folder: Path, as_json: bool) -> None:
    """Write a starter configuration and a module with a task."""
    written = write_starter(folder)
    inside = "" if folder == Path() else f"cd {folder} && "
    lines = [f"wrote {path}" for path in written]
    lines.append(f'next: {inside}supervisor enqueue greet \'{{"name": "Ada"}}\' && supervisor run --burst')
    Answer({"written": [str(path) for path in written]}, *lines).print(as_json=as_json)


def write_starter(folder: Path) -> list[Path]:
    """Write the starter files into `folder`, which is created if necessary, and return their paths.

    Raises Conflict if one of them exists, and ConfigError if they cannot be written.
    """
    from supervisor.domain.errors import ConfigError, Conflict

    files = {folder / "supervisor.toml": _STARTER / "supervisor.toml", folder / "jobs.py": _STARTER / "jobs.py.txt"}
    for path in files:
        if os.path.lexists(path):
            raise Conflict(f"{path} already exists; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, starter in files.items():
            path.write_bytes(starter.read_bytes())
    except OSError as error:
        raise ConfigError([f"{folder}: the starter files cannot be written: {error.strerror or error}"]) from None
    return [*files]


@answering
def check(target: Target) -> Answer:
    """Check the configuration and list every problem.

    Validates the file and imports each handler in a separate process, as a worker would.
    """
    from supervisor.config.machine import elsewhere, own_host
    from supervisor.config.settings import untaken
    from supervisor.domain.errors import ConfigError
    from supervisor.ops.doctor.configuration import check_configuration
    from supervisor.ops.doctor.database import refuse_outdated
    from supervisor.ops.doctor.services import pooler

    path = target.config_path
    try:
        settings = check_configuration(path, target.database)
    except ConfigError as error:
        problems = [f"error: {problem}" for problem in error.problems]
        value = {"ok": False, "config": str(path), "problems": error.problems}
        return Answer(value, notes=problems, failure=Exit(USAGE))
    refuse_outdated(settings.database)
    warnings = [*(sentence for _, sentence in untaken(settings)), *pooler(settings)]
    away = elsewhere(settings.pools, host := own_host(settings.database))
    value = {"ok": True, "config": str(path), "problems": [], "warnings": warnings, "pools": list(settings.pools)}
    text = f"{path}: OK; pools: {', '.join(settings.pools)}"
    remote = [f"the pool {name} runs on {where}, not on this host, {host}" for name, where in away.items()]
    notes = [f"warning: {path}: {warning}" for warning in warnings]
    return Answer(value | {"elsewhere": away}, text, *remote, notes=notes)


@answering
def doctor(target: Target) -> Answer:
    """Check the environment and say what to fix.

    Checks libraries, file system, permissions, memory and leftovers of dead processes.
    """
    from supervisor.ops.doctor import examine

    found = examine(target.config, target.database)
    ok = all(finding.level != "fault" for finding in found)
    keys = ("level", "about", "fact", "advice")
    rows = [
        row
        for one in found
        for row in ((one.level, one.about, one.fact), ("", "", f"→ {one.advice}"))
        if row[2] != "→ "
    ]
    return Answer(
        {"ok": ok, "findings": [{key: getattr(finding, key) for key in keys} for finding in found]},
        show=lambda: show(table(("", "about", "finding"), rows, wrap=True)),
        failure=None if ok else Exit(FAILED),
    )
