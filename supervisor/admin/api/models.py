"""Requests and answers. Requests are strict: an unknown field or a value of another type is refused.

All times in answers are Unix seconds, all durations seconds, all sizes bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fastapi import Path
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)

from supervisor.config.limits import LIMITS
from supervisor.domain import job as domain
from supervisor.domain import values
from supervisor.domain.enqueueing import MAX_KEY, MAX_PRIORITY, OPTIONS
from supervisor.domain.job import Status
from supervisor.domain.text import json_safe
from supervisor.ops.commands import MOST_WORKERS
from supervisor.store.base import BatchView, Filter, Sort

LARGEST_ID = 2**63 - 1
LARGEST_TIME = 1e11
MOST_CHOSEN = 1000  # jobs that a filter names one by one

_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def _moment(value: Any) -> Any:
    """The Unix seconds of a time in ISO 8601. Raises ValueError."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return values.time_of(value).timestamp()


def _whole(value: Any) -> Any:
    """For JSON, 3.0 is a whole number like 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_TIME: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 0, "exclusiveMaximum": LARGEST_TIME},
        {"type": "string", "format": "date-time", "pattern": r"^(19[7-9]|[234]\d\d)\d-"},
    ]
}
Moment = Annotated[
    float, Field(ge=0, lt=LARGEST_TIME, allow_inf_nan=False), BeforeValidator(_moment), WithJsonSchema(_TIME)
]
"""Unix seconds, or ISO 8601 with a time zone."""

CAPABILITY = r"^[!-~]{1,100}$"
IDEMPOTENCY_KEY = r"^[!-~]{1,200}$"
Capability = Annotated[str, Field(pattern=CAPABILITY)]
State = Annotated[Status, Field(strict=False)]
JobType = Annotated[str, Field(pattern=rf"^{values.TYPE.pattern}$", description="The type of a job.")]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), BeforeValidator(_whole)]
Workers = Annotated[int, Field(ge=0, le=MOST_WORKERS), BeforeValidator(_whole)]
Host = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.:*?\[\]!-]{0,253}$",
        description="The name of a host, or a pattern such as gpu-*; empty: everywhere.",
    ),
]
JobId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The job's id.")]
BatchId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The batch's id.")]
JobNumber = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=0, le=10**12), BeforeValidator(_whole)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Empty(Request):
    """No fields; the body may be omitted."""


class Retry(Request):
    """How one job is retried; the body may be omitted."""

    payload: Any = Field(default=None, description="Another payload, as for a new job; default: the payload it has.")
    done: bool = Field(default=False, description="Even if it has succeeded: it runs again, and its result is deleted.")


_NAMES = {"status": "statuses", "type": "types", "id": "ids", "tag": "tags", "key": "unique_key"}  # those of Filter
_LISTS = ("statuses", "types", "ids", "tags")


class JobFilter(Request):
    """Selects the jobs that match all given fields."""

    status: list[State] = Field(
        default_factory=list, max_length=len(Status), strict=False, description="In one of these states; empty: in any."
    )
    type: list[JobType] = Field(
        default_factory=list, max_length=100, description="Of one of these types; empty: of any."
    )
    error: str = Field(
        default="", max_length=500, description="A part of the last error's message; case does not matter."
    )
    text: str = Field(
        default="",
        max_length=500,
        description="A part of the last error's message, of the payload or of the result (their first 64 Ki "
        "characters); case does not matter. Needs `show_payloads` of `[admin]`.",
    )
    id: list[JobNumber] = Field(default_factory=list, max_length=MOST_CHOSEN, description="One of these jobs.")
    key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY, description="Its unique key.")
    requires: str | None = Field(
        default=None, max_length=100, description="A capability that it requires; empty: requires none."
    )
    priority: Priority | None = Field(default=None, description="Its priority.")
    tag: list[Annotated[str, Field(max_length=200)]] = Field(
        default_factory=list, max_length=20, description="With all of these in the list `tags` of its meta."
    )
    batch: JobNumber | None = Field(default=None, le=LARGEST_ID, description="Of this batch.")
    finished_after: Moment | None = Field(default=None, description="Finished then or later.")
    finished_before: Moment | None = Field(default=None, description="Finished before then.")

    def as_filter(self) -> Filter:
        """The same for the store."""
        given: dict[str, Any] = {_NAMES.get(name, name): getattr(self, name) for name in JobFilter.model_fields}
        return Filter(**given | {name: tuple(dict.fromkeys(given[name])) for name in _LISTS})


class JobQuery(JobFilter):
    """A page of jobs."""

    model_config = ConfigDict(extra="forbid", strict=False)

    before: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="Continue below this id: the `next` of the previous page."
    )
    limit: int = Field(default=50, ge=1, le=500, description="The maximum number of jobs; default: 50.")
    sort: Sort | None = Field(
        default=None, description="Another order, of the latest 10,000 matching jobs (below `before`, if given)."
    )
    order: Literal["asc", "desc"] = Field(default="asc", description="The direction of `sort`; default: asc.")


Capabilities = Annotated[list[Capability], Field(max_length=100)]
# What options of an enqueue are over HTTP, by their checks.
_TYPES: dict[Any, Callable[..., Any]] = {
    values.whole: lambda low, high: Annotated[int, Field(ge=low, le=high), BeforeValidator(_whole)],
    values.word: lambda *words: Literal[words],
    values.job_ids: lambda most: Annotated[list[int], Field(max_length=most)],
    values.delay_of: lambda: int | float | str,  # messages show a value as it was sent
    values.moment: lambda: Moment,
    values.capabilities: lambda: list[Capability] | Annotated[str, Field(max_length=100, pattern=r"^[ -~]*$")],
    values.text_key: lambda most: Annotated[str, Field(min_length=1, max_length=most)],
    values.json_object: lambda: dict[str, Any],
}
Model = TypeVar("Model", bound=Request)


def with_options(names: Iterable[str], **types: Any) -> Callable[[type[Model]], type[Model]]:
    """The model with these options of an enqueue as further fields, some of them with types of their own."""
    fields: dict[str, Any] = {}
    for name in names:
        check, text, limits, default, *_ = OPTIONS[name]
        hint = types.get(name, _TYPES[check](*limits))
        fields[name] = (hint | None if default is None else hint, Field(default, description=text))
    return lambda model: create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


@with_options(OPTIONS)
class NewJob(Request):
    """A new job, with the fields of `Queue.enqueue`."""

    type: JobType
    payload: Any = Field(default=None, description="Any JSON of at most 1 MiB and 64 levels; default `{}`.")


class Enqueued(BaseModel):
    id: int
    duplicate: bool = Field(description="Whether it is the id of an earlier job with the same `unique_key`.")


def _row(row: type, without: Iterable[str]) -> dict[str, Any]:
    """The fields of a model of this row. Times and durations may be null: other programs store what JSON has not."""
    own = {name: hint | None if hint is float else hint for name, hint in get_type_hints(row).items()}
    return {name: (hint, ...) for name, hint in own.items() if name not in without}


@cache
def described(hint: Any) -> Any:
    """The same type with models in the place of named tuples, which pydantic would describe as arrays."""
    if hasattr(hint, "_fields"):
        defaults = hint._field_defaults
        hints = get_type_hints(hint).items()
        own: dict[str, Any] = {name: (described(one), json_safe(defaults.get(name, ...))) for name, one in hints}
        return create_model(hint.__name__, __doc__=hint.__doc__, **own)
    parts = tuple(map(described, get_args(hint)))
    return reduce(or_, parts) if isinstance(hint, UnionType) else get_origin(hint)[parts] if parts else hint


Attempt = create_model("Attempt", __doc__="A run that did not succeed.", **_row(domain.Attempt, ("job_id",)))
Run = create_model(
    "Run",
    __doc__="A run that took some time, logged something, or did not succeed.",
    **_row(domain.Run, ("job_id",)),
)
JobSummary = create_model(
    "JobSummary",
    __doc__="A row of the table without its payload and result; docs/internals/schema.md says what each column means.",
    **_row(domain.Job, ("payload", "result", "meta")),
)


class TimelineEntry(BaseModel):
    """An event in the life of the job."""

    at: float
    event: str = Field(description="created, due, started, asked to stop, or the state in which it ended.")


JobDocument = create_model(
    "JobDocument",
    __doc__="One job with everything that is known about it.",
    __base__=JobSummary,
    worker=(str | None, Field(description="The name of the worker that has claimed it, if known.")),
    host=(str | None, Field(description="The host of that worker.")),
    after=(list[int], Field(description="The jobs whose end it waits for, or that have failed before it.")),
    payload=(Any, Field(description="JSON; null if it is redacted.")),
    result=(Any, Field(description="JSON; null if it is redacted.")),
    meta=(Any, Field(description="JSON: the user's own data; never redacted.")),
    redacted=(bool, Field(description="Payload and result are hidden; `show_payloads` of `[admin]` shows them.")),
    errors=(list[Attempt], ...),  # type: ignore[valid-type]
    runs=(list[Run], ...),  # type: ignore[valid-type]
    timeline=(list[TimelineEntry], ...),
)


Reason = create_model("Reason", __doc__=domain.Reason.__doc__, **_row(domain.Reason, ()))


class Why(BaseModel):
    id: int
    type: str
    status: str
    reasons: list[Reason] = Field(description="First what must change first; never empty.")  # type: ignore[valid-type]


BatchAnswer = create_model("BatchAnswer", __doc__=BatchView.__doc__, **_row(BatchView, ()))


class BatchList(BaseModel):
    batches: list[BatchAnswer]  # type: ignore[valid-type]


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]  # type: ignore[valid-type]
    next: int | None = Field(
        description="The `before` of the next page; null: this was the last one. A page may be short, even empty, and "
        "still have a next one: each request reads a bounded number of rows. With `sort`: older jobs were not sorted."
    )


class Changed(BaseModel):
    id: int
    status: str = Field(description="The job's new state, or `deleted`. A running job is asked to stop.")


class BulkRequest(Request):
    """A change of all jobs that match a filter."""

    filter: JobFilter
    count: Count | None = Field(
        default=None,
        description="The maximum number of jobs expected. Without it and `snapshot` nothing is changed: the answer "
        "says how many match.",
    )
    snapshot: str | None = Field(
        default=None,
        max_length=100,
        description="The `snapshot` of an earlier answer: exactly those jobs are changed, "
        "whatever `count` is. A snapshot is kept for ten minutes.",
    )


class BulkAnswer(BaseModel):
    matching: int
    changed: int
    skipped: int = Field(description="Not changed: their state has changed.")
    duplicates: int = Field(description="Not retried: unfinished jobs have their unique keys.")
    snapshot: str | None = Field(
        default=None,
        description="For a request without `count`: identifies the matching jobs; send it to change them.",
    )


class PoolChange(Request):
    """Fields that are left out stay unchanged."""

    workers: Workers | None = Field(
        default=None, description="The number of workers; null returns the pool to automatic scaling."
    )
    paused: bool = Field(default=False, description="Whether to stop starting jobs of all its types.")
    host: Host = ""

    @model_validator(mode="after")
    def _not_empty(self) -> PoolChange:
        if not self.model_fields_set - {"host"}:
            raise ValueError("give workers, paused, or both")
        if self.host and "paused" in self.model_fields_set:
            raise ValueError("only workers can be set on one host")
        return self


class PoolAnswer(BaseModel):
    name: str
    workers: int | None = Field(description="The number that is set; null: automatic scaling.")
    types: list[str]
    paused: list[str] = Field(description="Those of its types that are paused.")
    host: str = Field(default="", description="Where, if that is not everywhere.")


class TypeChange(Request):
    paused: bool = Field(description="Whether to stop starting jobs of this type.")
    force: bool = Field(default=False, description="Even if no pool takes the type and no job has it.")


class TypeAnswer(BaseModel):
    type: str
    paused: bool
    changed: bool = Field(description="Whether this was a change.")


_KEYS: dict[str, Any] = {name: (Any, Field(None, description=key.about)) for name, key in LIMITS.items()}


class LimitsChange(create_model("_Limits", __base__=Request, **_KEYS)):  # type: ignore[misc]
    """The keys and values of `[types.NAME]`; null takes a limit away, those that are left out stay as they are."""

    force: bool = Field(default=False, description="Even if no pool takes the type and no job has it.")


class LimitsAnswer(BaseModel):
    type: str
    limits: dict[str, Any] = Field(description="With the keys of the configuration; empty: none.")
    chosen: bool = Field(description="Whether an operator has set them; the configuration does not change them then.")


class LimitsPage(BaseModel):
    limits: list[LimitsAnswer]


class ScheduleChange(Request):
    """Beside `paused`: keys of `[[schedules]]`, for one that was made at run time. null removes a key."""

    model_config = ConfigDict(extra="allow")
    paused: bool | None = Field(default=None, description="Whether the schedule stops firing.")


class ScheduleAnswer(BaseModel):
    name: str
    paused: bool
    changed: bool = Field(description="Whether this was a change.")


class Health(BaseModel):
    status: Literal["alive"]
    version: str


class Ready(BaseModel):
    ready: Literal[True]


class NotReady(BaseModel):
    """Why the system is not ready."""

    error: str
    reasons: list[str]
