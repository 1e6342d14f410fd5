"""What may be enqueued: the options of an enqueue, and the way from a program's arguments to a row."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypedDict, final, get_type_hints

from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import AlikeJobs, Job, NewJob, NewJobs, unix_time
from supervisor.domain.text import compact_json
from supervisor.domain.values import (
    LAST_ID,
    MAX_DEPTH,
    MAX_PAYLOAD_BYTES,
    brackets,
    capabilities,
    checked_type,
    delay_of,
    encode,
    job_ids,
    json_object,
    moment,
    text_key,
    whole,
    word,
)

if TYPE_CHECKING:
    from typing import Unpack

MAX_PRIORITY = 100
MAX_ATTEMPTS = 1_000_000
MAX_KEY = 1000
MAX_WAITING = 1_000_000
MAX_BEFORE = 10_000  # jobs that one waits for
ONCE = "run:"
"""How the unique keys begin that are looked up among finished jobs, too: an index of the tables holds them."""
_AT_ONCE = 1000  # payloads
_PRIORITIES = (-MAX_PRIORITY, MAX_PRIORITY)
_FIELDS = frozenset(NewJob._fields)

_type = type  # where the name stands for an argument


class Option(NamedTuple):
    """How an option of an enqueue is checked, stored and described.

    `check` takes its name, its value and `limits`, returns what is stored, and raises InvalidJob. It also says how the
    option is written on the command line and over HTTP, which show `text`. `default` is its value if it is not given.
    `column` is another one than that of its name: a field of NewJob, or one of its `extra` columns. With `waited`, a
    request that waits for the result may have it, too.
    """

    check: Callable[..., Any]
    text: str
    limits: tuple[Any, ...] = ()
    default: Any = None
    column: str = ""
    waited: bool = False


Duration: TypeAlias = str | float | datetime.timedelta | None
Time: TypeAlias = datetime.datetime | float | None
Object: TypeAlias = Mapping[str, object] | None


class CommonOptions(TypedDict, total=False):
    """How jobs are enqueued that are made in one call: see `Queue.enqueue_many`."""

    priority: Annotated[
        int, Option(whole, "From -100 to 100; higher runs first. Default: 0.", _PRIORITIES, 0, waited=True)
    ]
    delay: Annotated[Duration, Option(delay_of, "The delay until the job is due, like 10s.", column="scheduled_at")]
    at: Annotated[Time, Option(moment, "When the job is due, like 2027-01-31T08:00+01:00.", column="scheduled_at")]
    requires: Annotated[
        str | Iterable[str], Option(capabilities, "Capabilities that the worker must have.", default=(), waited=True)
    ]
    max_attempts: Annotated[
        int | None,
        Option(whole, "Maximum number of attempts. Default: the pool's setting.", (1, MAX_ATTEMPTS), waited=True),
    ]
    concurrency_key: Annotated[
        str | None,
        Option(text_key, "Of jobs of this type with it, one runs at a time, or as many as configured.", (MAX_KEY,)),
    ]
    fair_key: Annotated[str | None, Option(text_key, "Whose turn it is, where the type is fair.", (MAX_KEY,))]
    expires_in: Annotated[
        Duration, Option(delay_of, "Cancelled if not started within this time, like 1h.", column="expires_at")
    ]
    expires_at: Annotated[Time, Option(moment, "Cancelled if not started by then, like 2027-01-31T08:00+01:00.")]
    batch: Annotated[int | None, Option(whole, "The id of the batch that it belongs to.", (1, LAST_ID))]
    meta: Annotated[Object, Option(json_object, 'A JSON object with your own data, like {"tags": ["nightly"]}.')]
    after: Annotated[
        Iterable[int] | None, Option(job_ids, "Held until these jobs have succeeded, like 41,42.", (MAX_BEFORE,))
    ]
    on_failed: Annotated[
        str | None, Option(word, "If one of those fails: cancel (the default) or run.", ("cancel", "run"))
    ]


class JobOptions(CommonOptions, total=False):
    """How a job is enqueued, beside its type and payload: see `Queue.enqueue`."""

    unique_key: Annotated[str | None, Option(text_key, "Only one unfinished job of this type can have it.", (MAX_KEY,))]
    unique: Annotated[
        str | None,
        Option(
            word,
            "How long the key counts: unfinished (the default), or pending: until the job starts.",
            ("unfinished", "pending"),
            column="waiting_key",
        ),
    ]
    unique_for: Annotated[Duration, Option(delay_of, "The key also counts for this time after a success, like 1h.")]
    on_duplicate: Annotated[
        str | None,
        Option(
            word,
            "If a job has the key: return its id (the default), replace what it is to do if it waits, or error.",
            ("return", "replace", "error"),
        ),
    ]


def new_job(type: str, payload: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """Validate the arguments of an enqueue. Raises InvalidJob, which names the field; TypeError for an unknown one."""
    if not options:
        return NewJob(checked_type(type), payload_of(payload))
    known(options)
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in options.items():
        check, _, limits, default, column, _ = OPTIONS[name]
        if value is None and default is None:
            continue
        stored = check(name, value, *limits)
        if column in fields or column in extra:
            names = [name for name in OPTIONS if OPTIONS[name].column == column]
            raise InvalidJob(names[0], f"give either {' or '.join(names)}, not both")
        if stored is not None:
            (fields if column in _FIELDS else extra)[column] = stored
    _add_uniqueness(fields, extra)
    if options.get("on_failed") is not None and options.get("after") is None:
        raise InvalidJob("on_failed", "it says what happens if one of the jobs in `after` fails; give after")
    if "expires_at" in extra:
        now = time.time()
        expires, due = unix_time(extra["expires_at"], now), unix_time(fields.get("scheduled_at") or now, now)
        if expires <= max(now, due):
            name = "expires_at" if options.get("expires_in") is None else "expires_in"
            raise InvalidJob(name, f"the job would expire {'before it is due' if expires > now else 'at once'}")
    return NewJob(checked_type(type), payload_of(payload), **fields, extra=extra)


def _add_uniqueness(fields: dict[str, Any], extra: dict[str, Any]) -> None:
    """How long the unique key counts, as it is stored. Raises InvalidJob."""
    key, until = fields.get("unique_key"), extra.pop("waiting_key", None)
    given = {"unique": until, "unique_for": extra.get("unique_for"), "on_duplicate": fields.get("on_duplicate")}
    for name, value in given.items():
        if value is not None and key is None:
            raise InvalidJob(name, "it says what a unique_key means; give one")
    if "unique_for" in extra:
        extra["unique_for"] = float(extra["unique_for"])  # seconds, and no time
    if until == "pending":
        if "unique_for" in extra:
            raise InvalidJob("unique_for", "it counts from the end of a job, for which unique='pending' does not wait")
        extra["waiting_key"] = key


def known(options: Mapping[str, object]) -> None:
    """Raises TypeError for a name that is no option."""
    if unknown := options.keys() - OPTIONS.keys():
        raise TypeError(f"{min(unknown)!r} is not an option; there are {', '.join(OPTIONS)}")


def new_request(
    *given: Any,
    idempotency_key: str | None = None,
    max_waiting: int | None = None,
    cancel: bool = False,
    **options: Any,
) -> NewJob:
    """`new_job` for somebody who waits for the result, and learns nothing before. With `cancel`, nobody else may find
    the job: a key, by which others could wait for it, is refused. Raises InvalidJob.
    """
    job = new_job(*given, **options)
    # Others may find it by its key, and learn its id.
    job = job._replace(durable=job.unique_key is not None, awaited=True)
    if idempotency_key is not None:
        if job.unique_key is not None:
            raise InvalidJob("idempotency_key", "give either unique_key or idempotency_key, not both")
        job = job._replace(unique_key=once_key(idempotency_key), once=True)
    if cancel and job.unique_key is not None:
        raise InvalidJob("cancel", "give either cancel or a key, not both: by the key, others may wait for the job")
    if max_waiting is not None:
        job = job._replace(max_waiting=whole("max_waiting", max_waiting, 1, MAX_WAITING))
    return job


def once_key(value: object) -> str:
    """The unique key of the job that answers all requests with this idempotency key. Raises InvalidJob."""
    return ONCE + text_key("idempotency_key", value, MAX_KEY - len(ONCE))


def require_same(job: Job, wanted: NewJob) -> None:
    """Raises InvalidJob if the job that was found by the idempotency key is that of another request."""
    if not is_same(job.payload, loads(wanted.payload)):
        raise InvalidJob("idempotency_key", f"job {job.id} has it, with another payload")


_FILE = re.compile(r"(?:.*/)?[0-9a-f]{32}-([0-9a-f]{64})", re.DOTALL)  # the path of a request's file, with its digest


def is_same(one: Any, other: Any) -> bool:
    """Whether two payloads mean the same: they are equal, but for the names of files with equal content."""
    return _essence(one) == _essence(other)


def _essence(payload: Any) -> tuple[str, str]:
    """The digest of the file that a payload names, empty if it names none of ours, and the rest as JSON: there, unlike
    in Python, true, 1 and 1.0 are not equal.
    """
    path = payload.get("path") if isinstance(payload, dict) else None
    found = _FILE.fullmatch(path) if isinstance(path, str) else None
    if found is None:
        return "", dumps(payload, sort_keys=True)
    return found[1], dumps({**payload, "path": ""}, sort_keys=True)


def payload_of(value: object) -> str:
    """JSON text of a payload. Raises InvalidJob."""
    return encode("payload", {} if value is None else value)


@final
@dataclass(init=False, slots=True)
class Enqueue:
    """One job for `Queue.enqueue_many`, with options of its own: what is None is as in the call."""

    payload: object
    type: str | None
    options: JobOptions

    def __init__(self, payload: object = None, type: str | None = None, **options: Unpack[JobOptions]) -> None:
        known(options)
        self.payload, self.type, self.options = payload, type, options


def new_jobs(type: str, values: Iterable[object], **options: Any) -> NewJobs:
    """Validate the jobs of an `enqueue_many`: payloads, and `Enqueue`s among them. Raises InvalidJob."""
    job = new_job(type, **options)
    arrays, count, rest = list[str](), 0, iter(values)
    while part := [{} if value is None else value for value in islice(rest, _AT_ONCE)]:
        if Enqueue in map(_type, part):
            before = AlikeJobs(job, arrays, count).each()
            return [*before, *(_one(job, options, value) for value in chain(part, rest))]
        arrays.append(_array(part))
        count += len(part)
    alike = AlikeJobs(job, arrays, count)
    return alike.each() if job.after else alike


def _one(job: NewJob, options: Mapping[str, Any], value: object) -> NewJob:
    if not isinstance(value, Enqueue):
        return job._replace(payload=payload_of(value))
    own: Mapping[str, Any] = {name: given for name, given in value.options.items() if given is not None}
    columns = {OPTIONS[name].column for name in own}
    common = {name: given for name, given in options.items() if OPTIONS[name].column not in columns}
    return new_job(value.type or job.type, value.payload, **common, **own)


def _array(values: list[object]) -> str:
    """Payloads as a JSON array. Encoding many at once is several times as fast as one by one."""
    containers = sum(type(value) in (dict, list) for value in values)
    try:
        text = compact_json([value if type(value) in (dict, list) else payload_of(value) for value in values])
        # No payload can be too large or too deep if all together are not: each container has a bracket at least.
        if len(text.encode()) <= MAX_PAYLOAD_BYTES and brackets(text) <= MAX_DEPTH + containers:
            return text
    except (ValueError, TypeError, RecursionError):
        pass  # encoding them one by one shows which
    return compact_json([payload_of(value) for value in values])


OPTIONS: Mapping[str, Option] = {
    name: option._replace(column=option.column or name)
    for name, hint in get_type_hints(JobOptions, include_extras=True).items()
    for option in hint.__metadata__
}
"""Every option of an enqueue, as JobOptions defines it: all that is not in the types of Python is derived from this."""
