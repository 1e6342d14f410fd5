"""The command-line application: finds the command, runs it and returns its exit code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from supervisor.cli.errors import INTERRUPTED, interrupted, report, report_usage
from supervisor.cli.options import ConfigFile, DatabaseUrl, Target
from supervisor.cli.output import ReaderGone, line, prepare, silence, write
from supervisor.cli.parser import Command, Group

# Every command, in the order of the help, with the module in this package that defines it under its name.
COMMANDS = {
    "init": "setup",
    "check": "setup",
    "doctor": "setup",
    "run": "running",
    "enqueue": "enqueue",
    "status": "status",
    "top": "top",
    "logs": "logs",
    "pause": "steering",
    "resume": "steering",
    "scale": "steering",
    "drain": "draining",
    "undrain": "draining",
    "reload": "steering",
    "purge": "upkeep",
    "migrate": "upkeep",
    "adopt": "adoption",
    "move": "move",
    "backup": "upkeep",
    "restore": "upkeep",
    "jobs": "jobs",
    "schedules": "schedules",
}

# The base of the parser's errors, wherever this version of typer keeps it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Lazily(Group):
    """Builds each command on first use: building all of them takes longer than most commands run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:  # all of them, to suggest similar names
            if name not in self.commands:
                self.commands[name] = _built(name)
        return self.commands.get(cmd_name)


@cache
def _built(name: str) -> Any:
    what = getattr(import_module(f"supervisor.cli.{COMMANDS[name]}"), name)
    if isinstance(what, typer.Typer):
        return get_command(what)
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(name, cls=Command)(what)
    return get_command(alone)


app = typer.Typer(
    name="supervisor",
    cls=_Lazily,
    help="Background jobs: a table in your database, SQLite or PostgreSQL, run by a supervised pool of workers.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    config: ConfigFile = None,
    database: DatabaseUrl = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    context.obj = Target.of(context, config, database)
    if version:
        from supervisor import __version__

        line(f"job-supervisor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(context.get_help() + "\n")


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and report any failure in one line. Returns the exit code."""
    prepare()
    _follow_link()
    command: Any = get_command(app)
    try:
        result = command.main(args=arguments, prog_name="supervisor", standalone_mode=False)
    except ReaderGone:
        silence()
        return 0
    except typer.Abort:  # Ctrl-C or Ctrl-D at a prompt
        interrupted()
        return INTERRUPTED
    except _UsageError as error:
        return report_usage(error)
    except OSError as error:
        silence()
        return report(error)
    except Exception as error:
        return report(error)
    return _ended(result)


def _follow_link() -> None:
    """A shell in the folder of a release stays there when that is deleted. $PWD leads to the release that follows it if
    the shell came by a link.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        with contextlib.suppress(KeyError, OSError):
            os.chdir(os.environ["PWD"])


def _ended(result: object) -> int:
    """The exit code of a command that ended without an error."""
    code = result if isinstance(result, int) else 0
    if code == INTERRUPTED:
        interrupted()
    return code
