"""`run`: the supervisor itself."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
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


_PAUSE = 0.1  # seconds between two drawings of the bar
_WIDTH = 72  # columns of the bar; log lines are longer, so they overwrite it
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
    failed = 0
    bar = _Bar() if burst and sys.stderr.isatty() else None

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


class _Bar:
    """Rich's progress bar for a burst, on the terminal's last line; the supervisor draws it itself: it has no threads.

    The cursor stays at the start of the line. If a worker or handler writes to the terminal, its output overwrites the
    bar, and the bar is drawn again below.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

        self._console = Console(stderr=True, force_terminal=True)
        self._console.width = min(_WIDTH, self._console.width)
        columns = TaskProgressColumn(), BarColumn(None), MofNCompleteColumn(), TextColumn("{task.description}")
        self._bar = Progress(*columns, console=self._console, auto_refresh=False, expand=True)
        self._task = self._bar.add_task("starting", total=None)
        self._began = time.monotonic()
        self._next = 0.0

    def update(self, progress: Progress) -> None:
        """The supervisor's observer. Calls in quick succession are cheap."""
        failed = f", {progress.failed} failed" if progress.failed else ""
        total = progress.done + progress.busy + progress.pending
        self._bar.update(
            self._task, completed=progress.done, total=total or None, description=f"{progress.busy} busy{failed}"
        )
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._draw("\r")

    def finish(self) -> None:
        """Leave the final state on its own line."""
        self._bar.update(self._task, description=f"in {time.monotonic() - self._began:.1f} s")
        self._draw("\n")

    def _draw(self, end: str) -> None:
        with self._console.capture() as captured:
            self._console.print(self._bar.get_renderable(), end="")
        with suppress(OSError):  # the terminal is gone, but the jobs continue
            sys.stderr.write(f"\r\x1b[2K{captured.get().rstrip()}{end}")
            sys.stderr.flush()
