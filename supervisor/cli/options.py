"""Options that many commands share, and the configuration and database they select."""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.errors import DATABASE, FAILED, NoDatabase, Stop, wrong_usage
from supervisor.cli.output import note
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import is_number, without_password

if TYPE_CHECKING:
    from supervisor.config import Settings
    from supervisor.store.base import Engine, Operations

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="The configuration file. Default: supervisor.toml in this folder, then $SUPERVISOR_CONFIG.",
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="Use this database, like sqlite:///jobs.db.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def as_job_id(text: str) -> int:
    """Raises BadParameter."""
    digits = text.lstrip("0")
    if not is_number(text) or not 1 <= int(digits[:20] or 0) < 2**63:
        raise typer.BadParameter(f"{reprlib.repr(text)} is not a job's id")
    return int(digits)


JobId = Annotated[int, typer.Argument(metavar="ID", parser=as_job_id)]
SomeJobIds = Annotated[list[int] | None, typer.Argument(metavar="[ID]…", parser=as_job_id, show_default=False)]
JobType = Annotated[str, typer.Argument(metavar="TYPE")]
OnlyType = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only jobs of this type.", show_default=False)
]

Patience = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="The maximum time to wait, with --wait.")
]


def patience_of(wait: bool, timeout: str | None) -> float | None:
    """The maximum number of seconds to wait; None for no limit."""
    if timeout is None:
        return None
    if not wait:
        raise wrong_usage("--timeout: only valid with --wait")
    from supervisor.domain.text import seconds

    try:
        return seconds(timeout)
    except ValueError as error:
        raise wrong_usage(f"--timeout: {error}") from None


@dataclass(frozen=True)
class Target:
    """The configuration and database of a command, as given on the command line."""

    config: Path | None
    database: str | None

    @classmethod
    def of(cls, context: typer.Context, config: str | None, database: str | None) -> Target:
        """Options after the command's name take precedence over those before it."""
        outer = context.find_root().obj
        file = None if config is None else Path(config)
        if isinstance(outer, Target):
            return cls(file or outer.config, database or outer.database)
        return cls(file, database)

    @property
    def config_path(self) -> Path:
        """Raises ConfigError if no file is named."""
        from supervisor.config import locate

        return locate(self.config)

    @cached_property
    def settings(self) -> Settings:
        """Read once. Raises ConfigError."""
        from supervisor.config import load

        return load(self.config_path, database=self.database, sources=False)

    def settings_if_any(self) -> Settings | None:
        """None with --database alone, which needs no configuration. Raises ConfigError."""
        return None if self.config is None and self.database is not None else self.settings

    def url(self) -> str:
        """The database's URL. With --database no configuration is read. Raises ConfigError."""
        if self.database is None:
            try:
                return self.settings.database
            except ConfigError as error:
                raise NoDatabase(error.problems) from None
        from supervisor.config.checks import absolute

        try:
            return absolute(self.database, Path())
        except ValueError as error:
            raise wrong_usage(f"--database: {error}") from None

    def listen_url(self) -> str | None:
        """The configured one: a URL on the command line is that of another database."""
        return None if self.database is not None else self.settings.listen_database

    def engine(self, *, create: bool = False) -> Engine:
        """The engine of an existing database; with `create`, a configured database need not exist yet.

        A URL on the command line may be mistyped, so such a database is never created. Raises
        ConfigError, StoreError or Stop.
        """
        from supervisor.engine import open_engine

        engine = open_engine(self.url(), self.listen_url())
        try:
            exists = engine.database.exists()
        except OSError as error:
            raise Stop(f"{without_password(engine.url)}: cannot be reached: {error.strerror}", code=DATABASE) from None
        if exists or (create and self.database is None):
            return engine
        if pids := engine.ownership.holders() if engine.database.file else []:
            who = f"supervisor {', '.join(map(str, pids))} still has the missing file open"
            hint = f"{who}; restore it together with the files beside it, or stop the supervisor"
        elif self.database is None:
            hint = "`supervisor enqueue` and `supervisor run` create it"
        else:
            hint = "check the path; `supervisor migrate` with this URL creates it"
        raise Stop(f"{without_password(engine.url)}: there is no such database", code=DATABASE, hint=hint)

    def operations(self) -> closing[Operations]:
        """A context manager: the operations on the database, closed at the end."""
        return closing(self.engine().operations())


def on_target(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options --config and --database. Its first parameter is the Target that they select."""

    @wraps(function)
    def command(context: typer.Context, config: str | None, database: str | None, **given: Any) -> None:
        function(Target.of(context, config, database), **given)

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    keyed = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", keyed, annotation=typer.Context),
        *(each.replace(kind=keyed) for each in own),
        inspect.Parameter("config", keyed, annotation=ConfigFile, default=None),
        inspect.Parameter("database", keyed, annotation=DatabaseUrl, default=None),
    ]
    parameters.sort(key=lambda each: each.name == "as_json")  # the last in the help
    # Typer reads the signature.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def confirm(what: str, count: int, *, yes: bool) -> None:
    """Ask for confirmation if `what` affects more than one job."""
    if count > 1:
        ask(f"{what} {count} jobs", yes=yes)


def ask(what: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises Exit if the answer is no, and Stop where nobody can be asked."""
    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise wrong_usage(f"this would {what}", "add --yes to do it without confirmation")
    if not typer.confirm(f"{what}?", err=True):
        note("nothing was changed")
        raise typer.Exit(FAILED)


def warn_if_nobody_runs(operations: Operations) -> None:
    """Warn before waiting for a job that no supervisor will run."""
    from supervisor.ops.supervisors import living

    if not living(operations):
        note("note: no supervisor is running on this database; start one with `supervisor run`")


def warn_of_type(target: Target, type_: str) -> None:
    """Warn about a type that no pool takes: a mistyped one would never run. Needs a configuration."""
    from supervisor.domain.text import untaken
    from supervisor.ops.supervisors import types_taken

    settings = target.settings_if_any()
    if settings is None:
        return
    known = {each for pool in settings.pools.values() for each in pool.types}
    if type_ in known:
        return
    with target.operations() as operations:
        known.update(types_taken(operations))
    if type_ not in known:
        note(f"warning: {untaken(type_, known)}")
