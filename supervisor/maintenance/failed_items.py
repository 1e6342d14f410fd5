"""Errors of single items of a duty: a row, a worker, a pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.domain.polling import backoff
from supervisor.maintenance.scheduler import FIRST_PAUSE, error_text
from supervisor.telemetry import events

Key = TypeVar("Key", bound=Hashable)

LONGEST_ITEM_PAUSE = 60.0  # seconds between two tries of an item that fails again and again
MOST_FAILED = 1000  # failing items remembered; with more, those that failed longest ago are tried again
_SHOWN = 200  # characters of an error, so that several fit into one line


class _Failure(NamedTuple):
    times: int
    not_before: float
    what: str
    error: str


class FailedItems(Generic[Key]):
    """Each item fails on its own, and is tried again after a pause of its own. `kind` names the items in messages.

    Only StoreUnavailable is raised: then the other items need not be tried.
    """

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._clock = clock
        self._failures: dict[Key, _Failure] = {}
        self._log = events(process="maintainer")

    def ready(self, key: Key) -> bool:
        """Whether it may be tried now."""
        failure = self._failures.get(key)
        return failure is None or failure.not_before <= self._clock()

    def fails(self, key: Key) -> bool:
        return key in self._failures

    @contextmanager
    def attempt(self, key: Key, what: object = None) -> Iterator[None]:
        """Record an error of the block for this item, or its success. `what` names it in messages; default: its key."""
        try:
            yield
        except StoreUnavailable:
            raise
        except Exception as error:
            self._note(key, str(key if what is None else what), error)
        else:
            self._failures.pop(key, None)

    def keep(self, keys: AbstractSet[Key]) -> None:
        """Forget all but these: the others no longer exist."""
        if self._failures:
            self._failures = {key: failure for key, failure in self._failures.items() if key in keys}

    def __len__(self) -> int:
        return len(self._failures)

    def next_try(self, now: float) -> float | None:
        """When the first failing item may be tried again; None if none fails. Both are Unix seconds."""
        if not self._failures:
            return None
        return now + max(0.0, min(failure.not_before for failure in self._failures.values()) - self._clock())

    @property
    def problem(self) -> str:
        """The failures in one line; empty if there are none."""
        if not self._failures:
            return ""
        first = next(iter(self._failures.values()))
        others = len(self._failures) - 1
        return f"{self._kind} {first.what}: {first.error}" + (f" (and {others} more)" if others else "")

    def _note(self, key: Key, what: str, error: Exception) -> None:
        before = self._failures.get(key)
        times = before.times + 1 if before else 1
        pause = backoff(FIRST_PAUSE, times, LONGEST_ITEM_PAUSE)
        text = error_text(error)[:_SHOWN]
        self._failures[key] = _Failure(times, self._clock() + pause, what, text)
        if len(self._failures) > MOST_FAILED:
            del self._failures[next(iter(self._failures))]
        if before is None or before.error != text:
            self._log.error(
                "item_failed",
                of=self._kind,
                item=what,
                error=text,
                exc_info=not isinstance(error, StoreError),
            )
