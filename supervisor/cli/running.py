"""`run`: the supervisor itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.errors import Stop, wrong_usage
from supervisor.cli.options import Target, on_target
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.supervision.burst import Progress


def _server(url: str) -> str:
    from supervisor.config.checks import server

    try:
        return server(url)
    except ValueError as error:
        raise wrong_usage(f"--listen-database: {error}") from None


_LISTED = "supervisor jobs list --status failed, or --status quarantined for jobs that killed their workers"


@on_target
def run(
    target: Target,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst",
            help="Run until no job is due, running or waiting for a retry within 10 minutes, then exit. "
            "A due job that no pool takes does not count.",
        ),
    ] = False,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME", help="Run only this pool; may be repeated.", show_default=False),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Reload when Python files or the configuration below its folder change. For development.",
        ),
    ] = False,
    drain_then_exit: Annotated[
        bool,
        typer.Option(
            "--drain-then-exit", help="Exit when `supervisor drain` has drained this host and its jobs have ended."
        ),
    ] = False,
    listen_database: Annotated[
        str | None,
        typer.Option(
            "--listen-database",
            metavar="URL",
            help="With a pooler as --database: the server itself, for notifications.",
            show_default=False,
        ),
    ] = None,
    allow_network: Annotated[
        bool,
        typer.Option(
            "--allow-network-file-system", help="Allow a database on a network file system, where SQLite is not safe."
        ),
    ] = False,
) -> None:
    """Run the supervisor.

    SIGTERM or Ctrl-C stops after the running jobs have finished; a second one stops at once. SIGHUP reloads.
    """
    from supervisor import app

    if watch and burst:
        raise wrong_usage("--watch is for a supervisor that keeps running; leave out --watch or --burst")
    bar, failed = None, 0
    if burst:
        from supervisor.cli.bar import Bar

        bar = Bar.on_terminal()

    def observe(progress: Progress) -> None:
        nonlocal failed
        failed = progress.failed
        if bar is not None:
            bar.update(progress)

    try:
        code = app.run(
            target.config_path,
            database=target.database,
            listen_database=None if listen_database is None else _server(listen_database),
            pools=pool or (),
            burst=burst,
            observer=observe if burst else None,
            network=allow_network,
            watch=watch,
            drain_then_exit=drain_then_exit,
        )
    finally:
        if bar is not None:
            bar.finish()
    if code and failed:
        raise Stop(f"{counted(failed, 'job')} failed", code=code, hint=_LISTED)
    raise typer.Exit(code)
