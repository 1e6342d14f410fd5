"""Every statement of an adoption is a fail-point, `adopt`: tests kill the process, or make it fail, at each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Steps:
    """Runs the statements."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        # Only the connections that tests ask for have fail-points.
        self._pass: Callable[[str], None] = getattr(raw, "reach", lambda _: None)

    def run(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self.reach(lambda: self.raw.execute(sql, parameters))

    def reach(self, work: Callable[[], Answer]) -> Answer:
        """Something that consists of one statement."""
        self._pass("adopt.before")
        answer = work()
        self._pass("adopt")
        return answer
