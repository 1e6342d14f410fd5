"""Capabilities: words that a worker has and a job may require, always compared as sets."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from functools import lru_cache


def normalise(requires: Iterable[str]) -> str:
    """The stored form: unique words, sorted, separated by one space, so that equal sets have equal texts."""
    return " ".join(sorted(set(requires)))


@lru_cache(maxsize=4096)
def covers(capabilities: str, requires: str) -> bool:
    """Whether a worker with `capabilities` may run a job that `requires` these (both space-separated).

    Rows from other programs may list words in any order, twice, or with odd spacing.
    """
    return set(requires.split()) <= set(capabilities.split())


def next_candidate(capabilities: str, requires: str) -> str:
    """The smallest text after `requires` that a worker with `capabilities` could cover.

    Nothing covered lies between the two, so a search can skip everything in between: with a thousand kinds of
    requirements that a worker does not meet, it looks at a few.
    """
    words = requires.split(" ")
    have, bounds = _bounds(capabilities)
    if not requires.isascii() or not requires.isprintable() or "" in words:
        return requires + "\0"  # unusual spacing: the words do not define an order
    for index, word in enumerate(words):
        if word not in have:
            before = "".join(f"{each} " for each in words[:index])
            return before + bounds[bisect.bisect_right(bounds, word)]
    return requires + "\0"


@lru_cache(maxsize=64)
def _bounds(capabilities: str) -> tuple[frozenset[str], list[str]]:
    """The words, and all prefixes of words at which something covered may start, in order.

    A word may be followed by any white space, also by one beyond ASCII, which sorts after everything printable.
    """
    have = frozenset(capabilities.split())
    return have, sorted({*have, *(word + "\x7f" for word in have), "\x7f"})
