"""The terminal: its alternate screen, its input and its size. It is always restored."""

from __future__ import annotations

import os
import sys
import termios
import tty
from contextlib import suppress
from typing import Self

_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"  # alternate screen, no cursor, no wrapping
_GIVE_BACK = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_FALLBACK = (80, 24)


class Terminal:
    """A context manager: takes the terminal, and always restores it at the end."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._before = termios.tcgetattr(self._input)
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        try:
            self.take()
        except BaseException:
            self.give_back()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.give_back()

    def take(self) -> None:
        tty.setcbreak(self._input)
        self._shown = []
        self._write(_TAKE)

    def give_back(self) -> None:
        """Restore the terminal. Does nothing if the terminal is gone."""
        with suppress(OSError):
            self._write(_GIVE_BACK)
        with suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    @property
    def input(self) -> int:
        return self._input

    def read(self) -> bytes:
        """The input. It is empty if the terminal is gone."""
        try:
            return os.read(self._input, 1024)
        except OSError:
            return b""

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._output)
        except OSError:
            return _FALLBACK
        return (columns, lines) if columns and lines else _FALLBACK

    def resized(self) -> None:
        """Redraw everything: what a terminal shows after its size has changed is not defined."""
        self._shown = []
        self._write("\x1b[2J")

    def show(self, lines: list[str]) -> None:
        """Draw only the lines that changed, to avoid flicker and to save bandwidth on slow connections."""
        changed = [
            f"\x1b[{number + 1};1H{line}\x1b[0m\x1b[K"
            for number, line in enumerate(lines)
            if number >= len(self._shown) or self._shown[number] != line
        ]
        if len(lines) < len(self._shown):
            changed.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = lines
        self._write("".join(changed))

    def _write(self, text: str) -> None:
        """Raises OSError if the terminal is gone."""
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]
