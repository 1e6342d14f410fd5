"""Messages to the supervisor. Their size is bounded, whatever the database holds: the channel limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from supervisor.domain.errors import StoreError, StoreGone
from supervisor.maintenance.scheduler import Failing

Item = TypeVar("Item")

_MOST_DUTIES = 20
_MOST_TEXT = 1000  # characters


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """At most `size` items at a time. Yields nothing if there are none."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def clipped(text: str, most: int = _MOST_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def trouble_of(error: StoreError | None) -> dict[str, Any]:
    """Why the database cannot be used; an empty text if it can."""
    gone = ("replaced" if error.replaced else "removed") if isinstance(error, StoreGone) else ""
    return {"trouble": "" if error is None else clipped(str(error)), "gone": gone}


def failing_duties(failing: dict[str, Failing]) -> dict[str, Any]:
    """The failing duties, each with the start (Unix seconds) and the error."""
    told = islice(failing.items(), _MOST_DUTIES)
    return {"duties": {clipped(name, 100): {"since": one.since, "error": one.error} for name, one in told}}
