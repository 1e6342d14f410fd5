"""Which of the jobs that a worker holds run together: those with the same key, as far as the budget goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """A job as far as batches are concerned. Those with different keys do not run together; one whose key is None
    runs alone. `most` is the largest batch that it may be in.
    """

    key: str | None
    cost: float
    most: int


def together(candidates: Sequence[Candidate], most: int, budget: float) -> list[int]:
    """The places of the jobs that run next, at most `most`.

    The first one always runs, so that no key has to wait for the others to be used up. The others follow in order
    while the sum of their costs is within the budget, and none is left out for one behind it with the same key.
    """
    first = candidates[0]
    chosen, cost = [0], first.cost
    most = min(most, first.most)
    if first.key is None:
        return chosen
    for place in range(1, len(candidates)):
        candidate = candidates[place]
        if candidate.key != first.key:
            continue
        if len(chosen) >= min(most, candidate.most) or cost + candidate.cost > budget:
            break
        chosen.append(place)
        cost += candidate.cost
        most = min(most, candidate.most)
    return chosen


def at_path(payload: Any, path: str) -> Any:
    """What a payload has at "model" or "options.model"; None if it lacks that."""
    for part in path.split("."):
        if not isinstance(payload, Mapping):
            return None
        payload = payload.get(part)
    return payload


def as_key(value: Any) -> str:
    """A text that is the same for equal values. Raises TypeError or ValueError for what JSON cannot represent."""
    return value if type(value) is str else "\0" + dumps(value, sort_keys=True)


def as_cost(value: Any) -> float:
    """Raises ValueError for what is not a number of at least 0."""
    if type(value) is int or type(value) is float:  # a bool is not a cost
        cost = float(value)
        if cost >= 0.0 and not math.isinf(cost):
            return cost
    raise ValueError(f"a cost must be a number of at least 0, not {str(value)[:60]!r}")
