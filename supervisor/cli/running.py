"""`run`: the supervisor itself."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from supervisor.cli.errors import Stop, wrong_usage
from supervisor.cli.options import Parsed, Target, flag, on_target, option
from supervisor.domain.text import counted

if TYPE_CHECKING:
    from supervisor.supervision.stopping import Progress


def _server(url: str) -> str:
    from supervisor.config.checks import server

    return server(url)


_PAUSE = 0.1  # seconds between two drawings of the progress
_LISTED = "supervisor jobs list --status failed, or --status quarantined for jobs that killed their workers"


@on_target
@flag(
    "--burst",
    "Run until no job is due, running or waiting for a retry within 10 minutes, then exit. "
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
