"""The filters in a page's address: parsed, written as an address again, and as filters of the store and the API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
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
_Number = Annotated[int, Field(gt=-_MOST, lt=_MOST)]


def _duration(text: str) -> str:
    seconds(text.removeprefix(_OLDER))
    return text


class JobQueryForm(BaseModel):
    """The requested filters, by their names in the address. `problems` lists what could not be parsed; then no job is
    selected.
    """

    model_config = ConfigDict(frozen=True)

    status: tuple[Status, ...] = ()
    type: tuple[str, ...] = ()
    text: str = ""
    error: str = ""
    key: str = ""
    requires: str = ""
    finished: Annotated[str, AfterValidator(_duration)] = ""
    priority: _Number | None = None
    sort: Annotated[str, Field(pattern=f"^-?({'|'.join(Sort)})$")] = ""  # descending with a minus sign
    before: _Number | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether it filters by anything other than the state."""
        return self.model_copy(update={"status": (), "before": None, "sort": ""}) != JobQueryForm()

    @property
    def by(self) -> Sort | None:
        """What the list is sorted by; None: the latest jobs first."""
        return Sort(self.sort.removeprefix("-")) if self.sort else None

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    def sorted_by(self, name: str) -> str:
        """The address of the list sorted by a column; the other way round if it is sorted by that already."""
        ways = (name, f"-{name}") if name in (Sort.TYPE, Sort.STATUS) else (f"-{name}", name)
        return self.address(sort=ways[self.sort == ways[0]])

    def which(self, now: float) -> Filter:
        return Filter(statuses=self.status, types=self.type, unique_key=self.key or None, **self._common(now))

    def as_filter(self, now: float, statuses: Sequence[Status]) -> dict[str, Any]:
        """The same as an API filter, restricted to some states."""
        named = {"status": [status.value for status in statuses], "type": list(self.type), "key": self.key or None}
        return named | self._common(now)

    def _common(self, now: float) -> dict[str, Any]:
        """What has the same name in both."""
        at = now - seconds(self.finished.removeprefix(_OLDER)) if self.finished else None
        older = self.finished.startswith(_OLDER)
        return {
            "error": self.error,
            "text": self.text,
            "requires": self.requires or None,
            "priority": self.priority,
            "finished_after": None if older else at,
            "finished_before": at if older else None,
        }

    def address(self, **changes: Any) -> str:
        """The address of this list with some fields changed; the page is the first unless `before` is given."""
        new = self.model_copy(update={"before": None} | changes)
        query = urlencode(new.model_dump(mode="json", exclude={"problems"}, exclude_defaults=True), doseq=True)
        return "/jobs" + (f"?{query}" if query else "")


def read(query: QueryParams, *, show_payloads: bool) -> JobQueryForm:
    """Parse the query of an address. Unknown and empty fields are ignored."""
    fields = JobQueryForm.model_fields.keys() - {"problems"}
    given: dict[str, Any] = {name: text for name in fields if (text := query.get(name, "").strip())}
    given["status"] = tuple(dict.fromkeys(filter(None, query.getlist("status"))))
    given["type"] = tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", " ".join(query.getlist("type"))))))
    problems = []
    if "text" in given and not show_payloads:
        problems.append("Payloads and results are hidden, so they cannot be searched.")
    try:
        JobQueryForm.model_validate(given)
    except ValidationError as error:
        for one in error.errors():
            problems.append(f"“{one['input']}” is not a valid {one['loc'][0]}.")
            given.pop(str(one["loc"][0]), None)
    return JobQueryForm(**given, problems=tuple(problems))
