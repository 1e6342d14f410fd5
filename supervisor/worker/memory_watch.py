"""A worker that exceeds max_memory detects it itself, between two jobs."""

from __future__ import annotations

import os

from supervisor.domain.process_health import is_far_over
from supervisor.system import kernel
from supervisor.system.slot import RecycleReason

_SLOW = 0.005  # seconds: after jobs that took this long, a check costs little
_EVERY = 0.1  # seconds between checks after quicker ones
_CLOSELY = 1.0  # seconds between close checks for what the resident size does not show: pages no longer shared


class MemoryWatch:
    """Checks the resident size, which is quick to read and never too small. Only above the limit it reads the size that
    counts: the unique size of the worker and of what it has started. `limit` is bytes, None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._looked = self._measured = 0.0
        self._unsuspicious = limit or 0  # bytes resident up to which the limit cannot have been reached
        self.reason = RecycleReason.LARGE  # once it is beyond the limit

    def beyond_limit(self, began: float, now: float) -> bool:
        """Whether to ask for a successor, after jobs that ran between these monotonic seconds."""
        if self._limit is None or (now - began < _SLOW and now - self._looked < _EVERY):
            return False
        self._looked = now
        resident = kernel.resident_of_family(os.getpid())
        if resident <= self._limit or (resident <= self._unsuspicious and now - self._measured < _CLOSELY):
            return False
        self._measured = now
        used = kernel.memory_of_family(os.getpid())
        left = self._limit - used
        self._unsuspicious = resident + left
        if is_far_over(used, self._limit):
            self.reason = RecycleReason.FAR_LARGE
        return left < 0
