"""`init`, `check`, `doctor` and `run`: from an empty folder to a supervisor that runs."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, USAGE, Stop, wrong_usage
from supervisor.cli.options import Answer, Parsed, Target, answering, as_json, flag, on_target, option
from supervisor.cli.output import show, table
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.supervision.stopping import Progress

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


def _server(url: str) -> str:
    from supervisor.config.checks import server

    return server(url)


_PAUSE = 0.1  # seconds between two drawings of the progress
_LISTED = "supervisor jobs list --status failed, or --status quarantined for jobs that killed their workers"


@on_target
@flag(
    "--burst",
    "Run until no job is due, running or waiting for a retry or a rate within 10 minutes, then exit. "
    "A due job that no pool takes does not count.",
)
@option("--pool", "Run only this pool; may be repeated.", "NAME", multiple=True)
@flag("--watch", "Reload when Python files or the configuration below its folder change. For development.")
@flag("--drain-then-exit", "Exit when `supervisor drain` has drained this host and its jobs have ended.")
@option("--listen-database", "With a pooler as --database: its server, for notifications.", "URL", type=Parsed(_server))
@flag("--allow-network-file-system network", "Allow a database on a network file system, where SQLite is not safe.")
def run(target: Target, burst: bool, pool: tuple[str, ...], watch: bool, **options: Any) -> None:
    """Run the supervisor.

    SIGTERM or Ctrl-C stops after the running jobs have finished; a second one stops at once. SIGHUP reloads.
    """
    from supervisor import app

    if watch and burst:
        raise wrong_usage("--watch is for a supervisor that keeps running; leave out --watch or --burst")
    began, drawn = time.monotonic(), 0.0
    failed, text = 0, ""
    terminal = burst and sys.stderr.isatty()

    def draw(more: str, end: str) -> None:
        # The cursor stays at the start of the line: what a handler writes there overwrites this, and it is drawn again.
        nonlocal drawn
        drawn = time.monotonic()
        with suppress(OSError):  # the terminal is gone, but the jobs continue
            sys.stderr.write(f"\r\x1b[2K{text}{more}{end}")
            sys.stderr.flush()

    def observe(progress: Progress) -> None:
        nonlocal failed, text
        failed, total = progress.failed, progress.done + progress.busy + progress.pending
        text = f"{progress.done}/{total} done" + (f", {failed} failed" if failed else "")
        if terminal and time.monotonic() >= drawn + _PAUSE:
            draw(f", {progress.busy} busy", "\r")

    try:
        code = app.run(
            target.config_path,
            database=target.database,
            pools=pool,
            burst=burst,
            observer=observe if burst else None,
            watch=watch,
            **options,
        )
    finally:
        if terminal and text:
            draw(f" in {time.monotonic() - began:.1f} s", "\n")
    if code and failed:
        raise Stop(f"{counted(failed, 'job')} failed", code=code, hint=_LISTED)
    raise Exit(code)
