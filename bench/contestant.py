"""What ours and the peers have in common: an empty queue that can be filled, and workers for it."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

ALL_COUNTS = (1, 2, 8, 12)


class OpenQueue(Protocol):
    """An empty queue in a folder of its own."""

    def fill(self, jobs: int) -> None:
        """Enqueue no-op jobs."""
        ...

    def workers(self, count: int) -> AbstractContextManager[list[subprocess.Popen[bytes]]]:
        """Worker processes for them; killed at the end."""
        ...


class Contestant(Protocol):
    """Ours with one setting, or a peer. `size` is the number of no-op jobs that make two or three seconds of work,
    `worker_counts` are the numbers of workers with which its throughput is measured.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def worker_counts(self) -> tuple[int, ...]: ...

    def open(self, folder: Path) -> AbstractContextManager[OpenQueue]: ...
