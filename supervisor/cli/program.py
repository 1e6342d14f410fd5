"""The command-line application: finds the command, runs it and returns its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click
from click.exceptions import Exit

from supervisor.cli.errors import INTERRUPTED, interrupted, report, report_usage
from supervisor.cli.options import SELECTING, flag, target_of
from supervisor.cli.output import ReaderGone, line, prepare, silence, write

# Every command, in the order of the help: the module in this package that defines it under its name, and the first
# sentence of its help, so that listing the commands loads none of them.
COMMANDS = {
    "init": ("setup", "Write a starter configuration and a module with a task, and print what to do next."),
    "check": ("setup", "Check the configuration and list every problem."),
    "doctor": ("setup", "Check the environment and say what to fix."),
    "run": ("setup", "Run the supervisor."),
    "enqueue": ("enqueue", "Enqueue a job and print its id."),
    "status": ("status", "Show supervisors, pools, workers and types."),
    "top": ("status", "Show everything live, with keys to control it."),
    "logs": ("logs", "Show what jobs print."),
    "limit": ("limits", "Show or change when jobs of a type may run."),
    "pause": ("steering", "Stop starting jobs of a type."),
    "resume": ("steering", "Start jobs of a paused type again."),
    "scale": ("steering", "Set a pool's number of workers on each host, or on one."),
    "drain": ("steering", "Let a host claim no more jobs; what runs there finishes."),
    "undrain": ("steering", "Let a drained host claim jobs again."),
    "reload": ("steering", "Reload the configuration and the code."),
    "schedules": ("steering", "List, make, change, pause, run schedules."),
    "purge": ("upkeep", "Delete old finished jobs."),
    "migrate": ("upkeep", "Bring the job tables up to date."),
    "backup": ("upkeep", "Copy the database to a new file while it is in use."),
    "restore": ("upkeep", "Replace the database with a copy made by `supervisor backup`."),
    "adopt": ("adoption", "Take over an existing jobs table."),
    "move": ("move", "Move all jobs from SQLite to PostgreSQL, or back."),
    "jobs": ("jobs", "List, show, explain, run, retry, cancel, delete jobs; show and close batches."),
}


class _Lazily(click.Group):
    """Imports the module of a command on first use: importing all of them takes longer than most commands run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"supervisor.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        room = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            rows = [(name, click.Command(name, help=text)) for name, (_, text) in COMMANDS.items()]
            formatter.write_dl([(name, command.get_short_help_str(room)) for name, command in rows])


@click.command(
    cls=_Lazily,
    params=[*SELECTING],
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@flag("--version", "Print the version.")
@click.pass_context
def app(context: click.Context, config: str | None, database: str | None, version: bool) -> None:
    """Background jobs: a table in your database, SQLite or PostgreSQL, run by a supervised pool of workers."""
    context.obj = target_of(context, config, database)
    if version:
        from supervisor import __version__

        line(f"job-supervisor {__version__}")
        raise Exit
    if context.invoked_subcommand is None:
        write(context.get_help() + "\n")


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and report any failure in one line. Returns the exit code."""
    prepare()
    _follow_link()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with app.make_context("supervisor", [*given]) as context:
            app.invoke(context)
    except Exit as error:
        return interrupted() if error.exit_code == INTERRUPTED else error.exit_code
    except (ReaderGone, BrokenPipeError):  # the latter of click, which prints the help
        silence()
        return 0
    except click.Abort:  # Ctrl-C or Ctrl-D at a prompt
        return interrupted()
    except click.UsageError as error:
        return report_usage(error)
    except Exception as error:
        if isinstance(error, OSError):
            silence()
        return report(error)
    return 0


def _follow_link() -> None:
    """A shell in the folder of a release stays there when that is deleted. $PWD leads to the release that follows it if
    the shell came by a link.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        with contextlib.suppress(KeyError, OSError):
            os.chdir(os.environ["PWD"])
