"""The wall clock of some processes, moved by a test while they run."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from tests.faults.shims import preload


class Clock:
    """The wall clock of the processes that were started with its environment."""

    def __init__(self, folder: Path) -> None:
        file = folder / "shift"
        file.write_bytes(bytes(8))
        self.environment = {**os.environ, **preload("clock", folder), "CLOCK_SHIFT": str(file)}
        with file.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), 8)

    def leap_to(self, seconds: int) -> None:
        """So many seconds ahead of the true time."""
        self._shift[:] = seconds.to_bytes(8, "little", signed=True)
