"""Capabilities: words that a worker has and a job may require, always compared as sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def normalise(requires: Iterable[str]) -> str:
    """The stored form: unique words, sorted, separated by one space, so that equal sets are equal texts."""
    return " ".join(sorted(set(requires)))


@lru_cache(maxsize=4096)
def covers(capabilities: str, requires: str) -> bool:
    """Whether a worker with `capabilities` may run a job that `requires` these (both space-separated).

    Rows from other programs may list words in any order, twice, or with odd spacing.
    """
    return set(requires.split()) <= set(capabilities.split())
