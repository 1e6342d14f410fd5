"""Parses the filters in a page's address, and writes them as an address again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from supervisor.domain.job import Status
from supervisor.domain.text import seconds
from supervisor.store.base import Filter, Sort

FINISHED = {
    "15m": "in the last 15 min",
    "1h": "in the last hour",
    "1d": "in the last day",
    "7d": "in the last week",
    "older-1d": "over a day ago",
    "older-7d": "over a week ago",
    "older-30d": "over 30 days ago",
}
"""The choices of the form; any other duration can be written into the address."""

_OLDER = "older-"
_MOST = 2**62  # larger ids and priorities are invalid, and SQLite could not store them


@dataclass(frozen=True, slots=True)
class JobQueryForm:
    """The requested filters. `problems` lists what could not be parsed; then no job is selected."""

    statuses: tuple[Status, ...] = ()
    types: tuple[str, ...] = ()
    error: str = ""
    key: str = ""
    requires: str = ""
    priority: int | None = None
    finished: str = ""
    before: int | None = None
    text: str = ""
    sort: str = ""
    problems: tuple[str, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether it filters by anything other than the state."""
        return replace(self, statuses=(), before=None, sort="") != JobQueryForm()

    @property
    def by(self) -> Sort | None:
        """What the list is sorted by; None: the latest jobs first. `sort` with a minus sign is descending."""
        return Sort(self.sort.removeprefix("-")) if self.sort else None

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    def sorted_by(self, name: str) -> str:
        """The address of the list sorted by a column; the other way round if it is sorted by that already."""
        first = name if name in (Sort.TYPE, Sort.STATUS) else f"-{name}"
        return self.address(sort=first if self.sort != first else name if first != name else f"-{name}")

    def which(self, now: float) -> Filter:
        return Filter(statuses=self.statuses, types=self.types, unique_key=self.key or None, **self._common(now))

    def as_filter(self, now: float, statuses: Sequence[Status]) -> dict[str, Any]:
        """The same as an API filter, restricted to some states."""
        named = {"status": [status.value for status in statuses], "type": list(self.types), "key": self.key or None}
        return named | self._common(now)

    def _common(self, now: float) -> dict[str, Any]:
        """What has the same name in both."""
        after, before = self._times(now)
        return {
            "error": self.error,
            "text": self.text,
            "requires": self.requires or None,
            "priority": self.priority,
            "finished_after": after,
            "finished_before": before,
        }

    def address(self, **changes: Any) -> str:
        """The address of this list with some fields changed; the page is the first unless `before` is given."""
        new = replace(self, **({"before": None} | changes))
        names = ("text", "error", "key", "requires", "finished", "priority", "sort", "before")
        single = ((name, getattr(new, name)) for name in names)
        query = [
            *(("status", status.value) for status in new.statuses),
            *(("type", type_) for type_ in new.types),
            *((name, value) for name, value in single if value not in ("", None)),
        ]
        return "/jobs" + (f"?{urlencode(query)}" if query else "")

    def _times(self, now: float) -> tuple[float | None, float | None]:
        if not self.finished:
            return None, None
        if self.finished.startswith(_OLDER):
            return None, now - seconds(self.finished.removeprefix(_OLDER))
        return now - seconds(self.finished), None


def read(query: QueryParams, *, show_payloads: bool) -> JobQueryForm:
    """Parse the query of an address. Unknown fields are ignored."""
    problems: list[str] = []
    return JobQueryForm(
        statuses=_statuses(query.getlist("status"), problems),
        types=tuple(
            dict.fromkeys(type_ for text in query.getlist("type") for type_ in re.split(r"[,\s]+", text) if type_)
        ),
        error=query.get("error", "").strip(),
        key=query.get("key", ""),
        requires=query.get("requires", "").strip(),
        priority=_number(query, "priority", problems),
        finished=_finished(query.get("finished", ""), problems),
        before=_number(query, "before", problems),
        text=_text(query.get("text", "").strip(), problems, show_payloads=show_payloads),
        sort=_sort(query.get("sort", ""), problems),
        problems=tuple(problems),
    )


def _statuses(written: Sequence[str], problems: list[str]) -> tuple[Status, ...]:
    found = []
    for text in filter(None, written):
        try:
            found.append(Status(text))
        except ValueError:
            problems.append(f"“{text}” is not a state; there are {', '.join(Status)}.")
    return tuple(dict.fromkeys(found))


def _number(query: Mapping[str, str], name: str, problems: list[str]) -> int | None:
    text = query.get(name, "").strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text) and abs(int(text)) < _MOST:
        return int(text)
    if text:
        problems.append(f"“{text}” is not a number, so it cannot be a {name}.")
    return None


def _text(text: str, problems: list[str], *, show_payloads: bool) -> str:
    if text and not show_payloads:
        problems.append("Payloads and results are hidden, so they cannot be searched.")
    return text


def _sort(text: str, problems: list[str]) -> str:
    if text and text.removeprefix("-") not in set(Sort):
        problems.append(f"Jobs cannot be sorted by “{text}”; there are {', '.join(Sort)}.")
        return ""
    return text


def _finished(text: str, problems: list[str]) -> str:
    try:
        if text:
            seconds(text.removeprefix(_OLDER))
    except ValueError:
        problems.append(f"“{text}” is not a duration; write it like 15m, 2h or {_OLDER}7d.")
        return ""
    return text
