"""A progress bar for a burst, on the terminal's last line. The supervisor draws it itself: it has no threads."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from supervisor.supervision.burst import Progress

_PAUSE = 0.1  # seconds between two drawings
_WIDTH = 72  # columns; log lines are longer, so they overwrite the bar
_ERASE = "\r\x1b[2K"


class Bar:
    """Rich's progress bar, rendered when the supervisor reports progress.

    The cursor stays at the start of the line. If a worker or handler writes to the terminal, its output
    overwrites the bar, and the bar is drawn again below.
    """

    def __init__(self, terminal: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._terminal = terminal
        self._console = Console(file=terminal, force_terminal=True)
        self._console.width = min(_WIDTH, self._console.width)
        self._bar = RichProgress(
            TaskProgressColumn(),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._began = time.monotonic()
        self._next = 0.0
        self._latest: Progress | None = None

    @classmethod
    def on_terminal(cls) -> Bar | None:
        """A bar if standard error, where the log goes, is a terminal."""
        return cls(sys.stderr) if sys.stderr.isatty() else None

    def update(self, progress: Progress) -> None:
        """The supervisor's observer. Calls in quick succession are cheap."""
        self._latest = progress
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PAUSE
            self._draw(progress, f"{progress.busy} busy")

    def finish(self) -> None:
        """Leave the final state on its own line."""
        if self._latest is not None:
            self._draw(self._latest, f"in {time.monotonic() - self._began:.1f} s")
            self._write("\n")

    def _draw(self, progress: Progress, word: str) -> None:
        failed = f", {progress.failed} failed" if progress.failed else ""
        total = progress.done + progress.busy + progress.pending
        self._bar.update(self._task, completed=progress.done, total=total or None, description=f"{word}{failed}")
        with self._console.capture() as captured:
            self._console.print(self._bar.get_renderable(), end="")
        self._write(f"{_ERASE}{captured.get().rstrip()}\r")

    def _write(self, text: str) -> None:
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except OSError:
            return  # the terminal is gone, but the jobs continue
