"""Answers that cost much, found again no sooner than their cost allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class CostCache(Generic[Answer]):
    """Keeps an answer for `patience` times as long as it took to find: whoever asks on and on takes no more of a
    core than one part in that.

    A quick answer is as good as always new.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._kept: Answer | None = None
        self._until = 0.0

    def answer(self, find: Callable[[], Answer]) -> Answer:
        """What `find` returns, now or lately. What it raises is not kept."""
        began = self._clock()
        kept = self._kept
        if kept is None or began >= self._until:
            kept = self._kept = find()
            ended = self._clock()
            self._until = ended + self._patience * (ended - began)
        return kept
