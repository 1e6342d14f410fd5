"""A job as its users see it, a job to be inserted, the claim on a job, and which jobs a worker may claim."""

from __future__ import annotations

import bisect
import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from supervisor.domain.text import compact_json, text_of

UNKNOWN = "which is unknown"  # how the error of a job ends whose status is none of ours
EXPIRED = "expired"  # the error of a job that has not started before its expires_at
_LONGEST = 4096  # characters of a text that is shown


class Status(enum.StrEnum):
    """The state of a job. docs/runs.md draws the transitions."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"

    @property
    def finished(self) -> bool:
        return self not in UNFINISHED


UNFINISHED = frozenset({Status.PENDING, Status.HELD, Status.RUNNING})


class Delay(float):
    """A time as seconds after the insertion, by the clock that the store goes by."""


Value = str | int | float  # a float is a time, Unix seconds or a Delay


class NewJob(NamedTuple):
    """A validated job, ready to be inserted. It is due at `scheduled_at`, without that at once.

    `payload` is JSON text. It is held until the jobs of these ids in `after` have ended; `on_failed` is what it does if
    one of them fails, "cancel" or "run". `on_duplicate` is what becomes of it if another job has its key: "return" the
    id of that, "replace" what that is to do unless it has started, "error". `extra` has the values of further columns,
    none of them None. The statement names no others: an adopted table may have columns of their names that need other
    values. With `max_waiting`, it is refused if so many jobs of its type with at least its priority are due already,
    and of those who ask at the same time no more find room than there is. With `once`, a finished job with its key is
    found, too; that key must be one of `enqueueing.once_key`. Without `durable`, a power failure may undo its insertion
    until `Producer.make_durable` has returned: nobody may learn its id before that. It is `awaited` if whoever inserts
    it waits for its end: then its result is kept until they look for the first time, also where jobs that have
    succeeded are deleted at once.
    """

    type: str
    payload: str
    priority: int = 0
    requires: str = ""
    scheduled_at: float | None = None
    max_attempts: int | None = None
    unique_key: str | None = None
    extra: Mapping[str, Value] = MappingProxyType({})
    after: tuple[int, ...] = ()
    on_failed: str = "cancel"
    on_duplicate: str = "return"
    max_waiting: int | None = None
    once: bool = False
    durable: bool = True
    awaited: bool = False

    def due(self, now: float) -> float:
        """When it is due if it is inserted now; both are Unix seconds."""
        return now if self.scheduled_at is None else unix_time(self.scheduled_at, now)


def unix_time(time: float, now: float) -> float:
    """A time or a delay, for an insertion now, as Unix seconds."""
    return now + time if isinstance(time, Delay) else time


class AlikeJobs(NamedTuple):
    """Validated jobs that differ in their payloads only; the rest is taken from `job`, which has no key.

    `payloads` are JSON arrays with `total` elements in all. An element is a payload, or a string with its JSON text.
    """

    job: NewJob
    payloads: list[str]
    total: int

    def each(self) -> list[NewJob]:
        """The same jobs, each with its own payload."""
        values = (value for array in self.payloads for value in json.loads(array))
        texts = (value if isinstance(value, str) else compact_json(value) for value in values)
        return [self.job._replace(payload=text) for text in texts]


NewJobs = Sequence[NewJob] | AlikeJobs


class Claim(NamedTuple):
    """One worker's right to run one job once. A tuple, because thousands are made a second.

    `payload` is the stored text, or bytes where another program stored a blob or invalid UTF-8.
    `attempt` counts from 1 and includes this run; `crashes` counts the workers that died running it. `due_at` is
    the Unix time from which it could have run.
    """

    job_id: int
    token: int
    type: str
    payload: str | bytes
    attempt: int
    max_attempts: int | None
    crashes: int
    due_at: float = 0.0


RunKey = tuple[int, int]
"""A job's id and the token of its claim, which identify one run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table. Times are Unix seconds, as stored; see docs/internals/schema.md for each column."""

    id: int
    type: str
    payload: Any
    status: Status
    priority: int
    requires: str
    scheduled_at: float
    attempts: int
    max_attempts: int | None
    crashes: int
    locked_by: str | None
    locked_at: float | None
    lock_expires_at: float | None
    claim_token: int
    cancel_requested_at: float | None
    unique_key: str | None
    progress: float | None
    result: Any
    last_error: str | None
    created_at: Any
    updated_at: Any
    started_at: float | None
    completed_at: float | None
    meta: Any = None
    progress_text: str | None = None
    batch: int | None = None
    concurrency_key: str | None = None
    fair_key: str | None = None
    hold: str | None = None

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a program that watches a job sees of it: `progress` is from 0 to 1, None if nothing was reported.

    `result` and `error` are those of a job that has ended. `attempt` counts from 1 and is 0 before the first one;
    `token` is another one for each run.
    """

    job_id: int
    status: Status
    progress: float | None
    text: str | None
    result: Any = None
    error: str | None = None
    attempt: int = 0
    token: int = 0

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts, with the names of the HTTP API (`GET /jobs/ID/events`)."""
        about = {
            "id": self.job_id,
            "status": self.status,
            "attempt": self.attempt,
            "progress": self.progress,
            "progress_text": self.text,
        }
        return about | {"result": self.result, "error": self.error} if self.status.finished else about


GATES = ("after", "due", "key", "type")
"""In the order in which a job passes them."""


class Held(NamedTuple):
    """Where a job stands that is held, or admitted for a later time. `gate` is "after" (other jobs must end first),
    "due" (its time has not come), "key" (its concurrency `key` has no room) or "type" (its type has none); of one that
    is admitted, what decided its time: "key", "type", or "" for its own.

    `limit` is how many jobs of the key or the type may run, `running` names those that do or may already, and
    `predecessors` those that must end; of more than a few the first ones, and `total` is how many there are. `since` is
    when the first of `running` has started. `ahead` are held there before this one. With a `rate`, or after so many
    `failures` in a row, for which the breaker is open, the next one may start at `next_at`. Times are Unix seconds;
    what is None is not known.
    """

    gate: str
    key: str | None = None
    limit: int | None = None
    rate: str = ""
    running: tuple[int, ...] = ()
    predecessors: tuple[int, ...] = ()
    total: int | None = None
    ahead: int | None = None
    next_at: float | None = None
    since: float | None = None
    failures: int = 0
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job does not run, or how it runs or has ended: `code` is a word for programs, `text` a sentence for people,
    and `advice` says what helps, with commands between backticks. `until` is when it ends by itself, in Unix seconds;
    `jobs` are the others that matter.
    """

    code: str
    text: str
    advice: str = ""
    until: float | None = None
    jobs: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


class Progress(NamedTuple):
    """How far a job is: from 0 to 1, and as a text; None for what its handler has not reported."""

    fraction: float | None
    text: str | None


class Attempt(NamedTuple):
    """One failed run of a job, as `job_errors` keeps it. `duration` is seconds, `peak_memory` bytes."""

    job_id: int
    attempt: int
    kind: str
    message: str
    traceback: str | None
    exit_code: int | None
    signal: str | None
    stderr: str | None
    peak_memory: int | None
    worker: str | None
    duration: float | None
    created_at: float


class Run(NamedTuple):
    """One run of a job, as `job_runs` keeps it. `started_at` is Unix seconds; `duration` and `cpu_time` are
    seconds, `peak_memory` is bytes.
    """

    job_id: int
    token: int
    attempt: int
    outcome: str
    worker: str | None
    started_at: float
    duration: float | None
    cpu_time: float | None
    peak_memory: int | None
    log: str | None


def shown(value: object) -> str:
    """A text of the table for display and as a key: other programs may have stored anything, of any length."""
    return "" if value is None else text_of(value, _LONGEST)


def decoded(text: object) -> Any:
    """Stored JSON as a value; invalid JSON is returned as the text itself, for a person to look at."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def high_enough(priority: int, min_priority: int | None) -> bool:
    """Whether a pool with this `min_priority` takes jobs of this priority; None takes all."""
    return min_priority is None or priority >= min_priority


def at_least(priority: int, min_priority: int | None) -> int:
    """This priority, or the lowest that a pool takes if that is higher."""
    return priority if min_priority is None else max(priority, min_priority)


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
