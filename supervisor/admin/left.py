"""Sessions that were logged out before their end. They stay invalid after a restart of the process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from supervisor.system.files import replace
from supervisor.telemetry import events

SESSION_SECONDS = 12 * 3600
_SUFFIX = ".left"
_MOST_BYTES = 4 << 20


class Left:
    """The ids of logged-out sessions. If there are too many, all existing sessions end.

    With a file they outlive this process; `is_kept` says whether the file can be written.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._until: dict[str, int] = {}
        self._floor = 0
        self._file: Path | None = None

    @classmethod
    def in_file(cls, token_file: Path, now: float, most: int = 10_000) -> Left:
        """Read the ids stored beside a token's file. An invalid file ends all existing sessions."""
        left = cls(most)
        file = token_file.with_name(token_file.name + _SUFFIX)
        try:
            stored = _read(file)
        except FileNotFoundError:
            stored = {"floor": 0, "left": {}}
        except (OSError, ValueError):
            stored = {"floor": int(now) + SESSION_SECONDS, "left": {}}
        left._floor = int(stored["floor"])
        left._until = {name: until for name, until in stored["left"].items() if until > now}
        left._file = file
        left._keep()
        return left

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    def add(self, name: str, until: int, now: float) -> None:
        if len(self._until) >= self._most:
            self._until = {other: end for other, end in self._until.items() if end > now}
        if len(self._until) >= self._most:
            self._floor = int(now) + SESSION_SECONDS
            self._until.clear()
        self._until[name] = until
        if self._file is not None:
            self._keep()

    def has(self, name: str, until: int) -> bool:
        return name in self._until or until <= self._floor

    def _keep(self) -> None:
        """Store the ids. If that fails, they are kept only in this process, and the log says so."""
        assert self._file is not None
        try:
            replace(self._file, json.dumps({"floor": self._floor, "left": self._until}))
        except OSError as error:
            events(process="admin").warning("sessions_not_kept", file=str(self._file), problem=error.strerror)
            self._file = None


def _read(file: Path) -> dict[str, Any]:
    """Raises ValueError for a file with other content; OSError as usual."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        stored = json.loads(stream.read(_MOST_BYTES))
    left = stored.get("left") if isinstance(stored, dict) else None
    numbers = [stored.get("floor"), *left.values()] if isinstance(left, dict) else [None]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"{file} does not hold sessions")
    return dict(stored)
