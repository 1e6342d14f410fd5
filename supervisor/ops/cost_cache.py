"""A cache for expensive queries, which are repeated less often the longer they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class CostCache(Generic[Answer]):
    """Keeps an answer for `patience` times as long as it took to compute, so that frequent callers use at most
    1/`patience` of a core.

    Answers that are computed quickly are nearly always fresh.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._kept: Answer | None = None
        self._until = 0.0

    def answer(self, find: Callable[[], Answer]) -> Answer:
        """The result of `find`, new or cached. Exceptions are not cached."""
        began = self._clock()
        kept = self._kept
        if kept is None or began >= self._until:
            kept = self._kept = find()
            ended = self._clock()
            self._until = ended + self._patience * (ended - began)
        return kept
