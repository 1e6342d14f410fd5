"""Options that many commands share, and the configuration and database they select."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from supervisor.cli.errors import DATABASE, FAILED, Stop, wrong_usage
from supervisor.cli.output import note, result, write
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import is_number, seconds, without_password

if TYPE_CHECKING:
    from supervisor.config import Settings
    from supervisor.store.base import Engine, Operations

Function = Callable[..., Any]


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A value that `parse` makes of a text. Its ValueError says what is wrong."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            start = f"{param.opts[0]}: " if isinstance(param, click.Option) else ""
            raise wrong_usage(f"{start}{getattr(error, 'problem', error)}") from None


def option(names: str, text: str, metavar: str | None = None, **more: Any) -> Callable[[Function], Function]:
    """An option by these names, separated by spaces, with its help."""
    return click.option(*names.split(), help=text, metavar=metavar, **more)


def flag(names: str, text: str) -> Callable[[Function], Function]:
    return option(names, text, is_flag=True)


class _OfKey(click.Option):
    def __init__(self, *names: Any, table: str, **more: Any) -> None:
        super().__init__(*names, **more)
        self.table = table

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from supervisor.config.settings import TOP  # when somebody asks for this help: `supervisor --help` is fast

        self.help = TOP[self.table].check.keys[self.name].about  # type: ignore[union-attr, index]
        return super().get_help_record(ctx)


def of_keys(table: str, forms: str) -> Callable[[Function], Function]:
    """Options for these keys of a table of the configuration, each with what follows it: `rate=N/s fair=`."""

    def decorated(function: Function) -> Function:
        for key, form in reversed([each.split("=") for each in forms.split()]):
            name = f"--{key.replace('_', '-')}"
            more = {"type": int if form == "N" else str, "metavar": form} if form else {"default": None}
            names = name if form else f"{name}/--no-{key}"
            function = click.option(names, cls=_OfKey, table=table, **more)(function)
        return function

    return decorated


def _absolute(url: str) -> str:
    from supervisor.config.checks import absolute

    return absolute(url, Path())


SELECTING: list[click.Parameter] = [
    click.Option(
        ["--config", "-c"],
        help="The configuration file. Default: supervisor.toml here, then $SUPERVISOR_CONFIG.",
        metavar="FILE",
    ),
    click.Option(
        ["--database"], help="Use this database, like sqlite:///jobs.db.", metavar="URL", type=Parsed(_absolute)
    ),
]


def _id(of: str) -> Parsed:
    def parse(text: str) -> int:
        digits = text.lstrip("0")
        if not is_number(text) or not 1 <= int(digits[:20] or 0) < 2**63:
            raise ValueError(f"{reprlib.repr(text)} is not a {of}'s id")
        return int(digits)

    return Parsed(parse)


JOB_ID, BATCH_ID = _id("job"), _id("batch")
DURATION = Parsed(seconds)

_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document.")
as_json = flag("--json as_json", "Print one JSON document.")
yes = flag("--yes -y", "Do not ask for confirmation.")
only_type = option("--type", "Only jobs of this type.", "TYPE")
patience = option("--timeout", "The maximum time to wait, with --wait. Default: no limit.", "DURATION", type=DURATION)


def check_patience(wait: bool, timeout: float | None) -> None:
    if timeout is not None and not wait:
        raise wrong_usage("--timeout: only valid with --wait")


class Target:
    """The configuration and database of a command, as given on the command line."""

    def __init__(self, config: Path | None, database: str | None) -> None:
        self.config, self.database = config, database

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
            error.add_note("--database URL names the database; then no configuration is read")
            raise

    def listen_url(self) -> str | None:
        """The configured one: a URL on the command line is that of another database."""
        return None if self.database is not None else self.settings.listen_database

    def engine(self, *, create: bool = False) -> Engine:
        """The engine of an existing database; with `create`, a configured database need not exist yet, unless a
        supervisor still has it open: it was moved away or deleted.

        A URL on the command line may be mistyped, so such a database is never created. Raises
        ConfigError, StoreError or Stop.
        """
        from supervisor.engine import open_engine

        engine = open_engine(self.url(), self.listen_url())
        try:
            exists = engine.database.exists()
        except OSError as error:
            raise Stop(f"{without_password(engine.url)}: cannot be reached: {error.strerror}", code=DATABASE) from None
        if exists:
            return engine
        if pids := engine.ownership.holders() if engine.database.file else []:
            who = f"supervisor {', '.join(map(str, pids))} still has the missing file open"
            hint = f"{who}; restore it together with the files beside it, or stop the supervisor"
        elif create and self.database is None:
            return engine
        elif self.database is None:
            hint = "`supervisor enqueue` and `supervisor run` create it"
        else:
            hint = "check the path; `supervisor migrate` with this URL creates it"
        raise Stop(f"{without_password(engine.url)}: the database does not exist", code=DATABASE, hint=hint)

    def operations(self) -> closing[Operations]:
        """A context manager: the operations on the database, closed at the end."""
        return closing(self.engine().operations())


def target_of(context: click.Context, config: str | None, database: str | None) -> Target:
    """Options after the command's name take precedence over those before it."""
    outer, file = context.find_root().obj, None if config is None else Path(config)
    return Target(file or outer.config, database or outer.database) if outer else Target(file, database)


class Answer:
    """What a command has done: `value` is the document of --json, `lines` are for people, or `show` prints them.

    `notes` go to standard error, except with --json. `failure` is reported after all that, and gives the exit code.
    """

    def __init__(
        self,
        value: object,
        *lines: str,
        show: Callable[[], None] | None = None,
        notes: Iterable[str] = (),
        failure: Exception | None = None,
    ) -> None:
        self.value, self.lines, self.show, self.notes, self.failure = value, lines, show, notes, failure

    def print(self, *, as_json: bool) -> None:
        result(self.value, *self.lines, as_json=as_json)
        if not as_json:
            if self.show is not None:
                self.show()
            for text in self.notes:
                note(text)
        if self.failure is not None:
            raise self.failure


def answering(function: Callable[..., Answer]) -> click.Command:
    """A command with the options --json, --config and --database, which prints the answer of the function. The first
    parameter of the function is the Target that the options select.
    """

    def call(target: Target, as_json: bool, **given: Any) -> None:
        function(target, **given).print(as_json=as_json)

    return _command(function, call, [_JSON])


def on_target(function: Function) -> click.Command:
    """A command with the options --config and --database, which prints what it has to say itself."""
    return _command(function, function, ())


def _command(function: Function, run: Function, more: Iterable[click.Parameter]) -> click.Command:
    def call(config: str | None, database: str | None, **given: Any) -> None:
        run(target_of(click.get_current_context(), config, database), **given)

    own = getattr(function, "__click_params__", [])  # the last decorator's first
    params = [*own[::-1], *more, *SELECTING]
    return click.Command(function.__name__, callback=call, params=params, help=function.__doc__)


def group(text: str, commands: dict[str, click.Command]) -> click.Group:
    """Commands below a word; without one, their help."""

    def show() -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            write(context.get_help() + "\n")

    return click.Group(commands=commands, callback=show, invoke_without_command=True, help=text)


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
    if not click.confirm(f"{what}?", err=True):
        note("nothing was changed")
        raise Exit(FAILED)
