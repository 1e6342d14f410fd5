"""Queries that the maintainer repeats after each commit, and that are slow while a transaction elsewhere stays open."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from supervisor.store.postgres.connection import Connection
from supervisor.store.sql.controls import SqlControls

SLOW = 0.05  # seconds
_COST = 20  # the time between two of them is at least so many times what the last one took
_LONGEST = 10.0  # seconds between two

Answer = TypeVar("Answer")


class Repeated(Generic[Answer]):
    """One query. Its answer is kept for a while if it was slow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: tuple[float, Answer] | None = None  # until when, and what

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        began = self._clock()
        if self._kept is not None and began < self._kept[0]:
            return self._kept[1]
        answer = ask()
        took = self._clock() - began
        until = began + took + min(_COST * took, _LONGEST)
        self._kept = (until, answer) if took > SLOW else None
        return answer


class PostgresControls(SqlControls):
    """Implements `store.base.Controls` for a maintainer, which asks for the cancels of its own workers alone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._cancels: dict[tuple[str, int], Repeated[list[tuple[int, int, str]]]] = {}

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        repeated = self._cancels.setdefault((supervisor, limit), Repeated())
        return repeated.answer(lambda: super(PostgresControls, self).cancels(supervisor, limit))
