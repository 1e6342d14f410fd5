"""The command-line application: finds the command, runs it and returns its exit code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from supervisor.cli.errors import INTERRUPTED, interrupted, report, report_usage
from supervisor.cli.options import ConfigFile, DatabaseUrl, option, target_of
from supervisor.cli.output import ReaderGone, line, prepare, silence, write

# Every command, in the order of the help, with the module in this package that defines it under its name, or that has
# several, in COMMANDS.
COMMANDS = {
    name: module
    for module, names in {
        "setup": "init check doctor",
        "running": "run",
        "enqueue": "enqueue",
        "status": "status",
        "top": "top",
        "logs": "logs",
        "steering": "pause resume scale drain undrain reload",
        "upkeep": "purge migrate backup restore",
        "adoption": "adopt",
        "move": "move",
        "jobs": "jobs",
        "schedules": "schedules",
    }.items()
    for name in names.split()
}

# The base of the parser's errors, wherever this version of typer keeps it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Light:
    """Without the conversion of values that need none, and without Python's types in the help.

    Typer converts every value through pydantic, even text to text, and importing pydantic takes longer than most
    commands take to run.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:  # among them those that Typer adds, like --help
            if not isinstance(param.process_value, partial):
                param.process_value = partial(_value, param, param.process_value)
                if param.metavar is not None:  # it says what to write; Typer would add <str> or <list[int]>
                    param.display_type = lambda ctx: ""
                    if param.param_type_name == "argument":  # and write {TYPE} [[JSON]] in the usage
                        param.get_usage_pieces = partial(lambda metavar, ctx: [metavar], param.metavar)
        return params


class _Command(_Light, TyperCommand):
    pass


class _Group(_Light, TyperGroup):
    pass


def _value(param: Any, convert: Any, context: Any, given: Any) -> Any:
    """What the command receives: texts and defaults as they are, what has a parser of ours from it, all else as Typer
    converts it.
    """
    described = getattr(param, "type_descriptor", None)
    if described is None:  # a version of Typer that does not use pydantic
        return convert(context, given)
    parse, value = described.parameter_info.parser, given
    if parse is not None and given:
        value = [parse(text) for text in given] if isinstance(given, (list, tuple)) else parse(given)
    elif not (described.annotation is str and isinstance(given, str)) and (
        param.required or not (given is param.default or given == ())
    ):
        return convert(context, given)
    return value if param.callback is None else param.callback(context, param, value)


class _Lazily(_Group):
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
    module = import_module(f"supervisor.cli.{COMMANDS[name]}")
    several = getattr(module, "COMMANDS", None)
    built = typer.Typer(cls=_Group, rich_markup_mode=None, add_completion=False)
    if several is None:
        built.command(name, cls=_Command)(getattr(module, name))
        return get_command(built)
    built.callback(invoke_without_command=True, help=module.HELP)(_help)
    for each, command in several.items():
        built.command(each, cls=_Command)(command)
    return get_command(built)


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        write(context.get_help() + "\n")


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
    version: Annotated[bool, option("--version", "Print the version.", is_eager=True)] = False,
) -> None:
    context.obj = target_of(context, config, database)
    if version:
        from supervisor import __version__

        line(f"job-supervisor {__version__}")
        raise typer.Exit
    _help(context)


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
        return interrupted()
    except _UsageError as error:
        return report_usage(error)
    except Exception as error:
        if isinstance(error, OSError):
            silence()
        return report(error)
    code = result if isinstance(result, int) else 0
    return interrupted() if code == INTERRUPTED else code


def _follow_link() -> None:
    """A shell in the folder of a release stays there when that is deleted. $PWD leads to the release that follows it if
    the shell came by a link.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        with contextlib.suppress(KeyError, OSError):
            os.chdir(os.environ["PWD"])
