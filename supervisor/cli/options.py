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
from supervisor.domain.text import is_number, seconds, without_password

if TYPE_CHECKING:
    from supervisor.config import Settings
    from supervisor.store.base import Engine, Operations

Parse = Callable[[str], Any]


def option(names: str, text: str, metavar: str | None = None, parse: Parse | None = None, **more: Any) -> Any:
    """An option by these names, separated by spaces, with its help. ValueError of `parse` says what is wrong."""
    first, *others = names.split()
    parser = None if parse is None else parsing(parse, f"{first}: ")
    return typer.Option(first, *others, help=text, metavar=metavar, parser=parser, show_default=False, **more)


def parsing(parse: Parse, start: str = "") -> Parse:
    def parser(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise wrong_usage(f"{start}{error}") from None

    return parser


ConfigFile = Annotated[
    str | None,
    option("--config -c", "The configuration file. Default: supervisor.toml here, then $SUPERVISOR_CONFIG.", "FILE"),
]


def _absolute(url: str) -> str:
    from supervisor.config.checks import absolute

    return absolute(url, Path())


DatabaseUrl = Annotated[
    str | None, option("--database", "Use this database, like sqlite:///jobs.db.", "URL", parse=_absolute)
]
AsJson = Annotated[bool, option("--json", "Print one JSON document.")]
Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]


def _job_id(text: str) -> int:
    digits = text.lstrip("0")
    if not is_number(text) or not 1 <= int(digits[:20] or 0) < 2**63:
        raise ValueError(f"{reprlib.repr(text)} is not a job's id")
    return int(digits)


as_job_id = parsing(_job_id)
JobId = Annotated[int, typer.Argument(metavar="ID", parser=as_job_id)]
SomeJobIds = Annotated[list[int] | None, typer.Argument(metavar="[ID]…", parser=as_job_id, show_default=False)]
JobType = Annotated[str, typer.Argument(metavar="TYPE")]
OnlyType = Annotated[str | None, option("--type", "Only jobs of this type.", "TYPE")]

Patience = Annotated[
    float | None, option("--timeout", "The maximum time to wait, with --wait.", "DURATION", parse=seconds)
]


def check_patience(wait: bool, timeout: float | None) -> None:
    if timeout is not None and not wait:
        raise wrong_usage("--timeout: only valid with --wait")


@dataclass(frozen=True)
class Target:
    """The configuration and database of a command, as given on the command line."""

    config: Path | None
    database: str | None

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

    def types(self) -> set[str]:
        """The types that a pool of the configuration takes; none with --database alone. Raises ConfigError."""
        settings = self.settings_if_any()
        return set() if settings is None else {name for pool in settings.pools.values() for name in pool.types}

    def url(self) -> str:
        """The database's URL. With --database no configuration is read. Raises ConfigError."""
        try:
            return self.database or self.settings.database
        except ConfigError as error:
            raise NoDatabase(error.problems) from None

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


def target_of(context: typer.Context, config: str | None, database: str | None) -> Target:
    """Options after the command's name take precedence over those before it."""
    outer, file = context.find_root().obj, None if config is None else Path(config)
    return Target(file or outer.config, database or outer.database) if outer else Target(file, database)


def on_target(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options --config and --database. Its first parameter is the Target that they select."""

    @wraps(function)
    def command(context: typer.Context, config: str | None, database: str | None, **given: Any) -> None:
        function(target_of(context, config, database), **given)

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
