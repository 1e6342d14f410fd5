"""What may be enqueued: every check between a program's arguments and a row."""

from __future__ import annotations

import datetime
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypedDict, final, get_type_hints

from supervisor.domain.errors import InvalidJob, InvalidOption, JobNotFound
from supervisor.domain.job import AlikeJobs, Delay, Job, NewJob, NewJobs, normalise
from supervisor.domain.text import compact_json, seconds

if TYPE_CHECKING:
    from typing import Unpack

MAX_PAYLOAD_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_PRIORITY = 100
MAX_TIME = 1e11  # seconds: the year 5138; milliseconds since 1970 exceed it
MAX_ATTEMPTS = 1_000_000
MAX_KEY = 1000
MAX_WAITING = 1_000_000
ONCE = "run:"
"""How the unique keys begin that are looked up among finished jobs, too: an index of the tables holds them."""
MAX_REQUIRES = 1000
MAX_META_BYTES = 16 << 10
LAST_ID = 2**63 - 1
_LONGEST_WAIT = 1e9  # seconds, 31 years: clocks of the system end some centuries later
_AT_ONCE = 1000  # payloads
_PRIORITIES = (-MAX_PRIORITY, MAX_PRIORITY)
_FIELDS = frozenset(NewJob._fields)

_type = type  # where the name stands for an argument

TYPE = re.compile(r"[a-zA-Z0-9_.:/-]{1,100}")
CAPABILITY = re.compile(r"[!-~]{1,100}")  # printable ASCII without the space that separates them


class Option(NamedTuple):
    """How an option of an enqueue is checked, stored and described.

    `check` takes its name, its value and `limits`, returns what is stored, and raises InvalidJob. It also says how the
    option is written on the command line and over HTTP, which show `text`. `default` is its value if it is not given.
    `column` is another one than that of its name: a field of NewJob, or one of its `extra` columns. With `waited`, a
    request that waits for the result may have it, too.
    """

    check: Callable[..., Any]
    text: str
    limits: tuple[int, ...] = ()
    default: Any = None
    column: str = ""
    waited: bool = False


Duration: TypeAlias = str | float | None
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
    meta: Annotated[Object, Option(json_object, 'A JSON object with your own data, like {"tags": ["nightly"]}.')]


class JobOptions(CommonOptions, total=False):
    """How a job is enqueued, beside its type and payload: see `Queue.enqueue`."""

    unique_key: Annotated[str | None, Option(text_key, "Only one unfinished job of this type can have it.", (MAX_KEY,))]


def new_job(type: str, payload: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """Validate the arguments of an enqueue. Raises InvalidJob, which names the field; TypeError for an unknown one."""
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
    return NewJob(checked_type(type), payload_of(payload), **fields, extra=extra)


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
    return AlikeJobs(job, arrays, count)


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
        if len(text.encode()) <= MAX_PAYLOAD_BYTES and _brackets(text) <= MAX_DEPTH + containers:
            return text
    except (ValueError, TypeError, RecursionError):
        pass  # encoding them one by one shows which
    return compact_json([payload_of(value) for value in values])


def checked_type(value: object) -> str:
    if not isinstance(value, str) or not TYPE.fullmatch(value):
        raise InvalidJob("type", f"{short(value)} is not a valid type: 1 to 100 characters of a-z A-Z 0-9 _ . : / -")
    return value


def encode(field: str, value: object) -> str:
    """JSON text of a payload or a result. Raises InvalidJob for what JSON cannot represent, or is too large."""
    try:
        text = compact_json(value)
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidJob(field, "it contains a lone surrogate, which UTF-8 cannot encode") from None
    except RecursionError:
        raise InvalidJob(field, f"it is nested deeper than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        raise InvalidJob(field, f"it is not valid JSON: {error}") from None
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidJob(field, f"it has {size} bytes of JSON; the limit is {MAX_PAYLOAD_BYTES} (1 MiB)")
    # Each level opens a bracket: with no more brackets than levels allowed there is nothing to walk.
    if _brackets(text) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise InvalidJob(field, f"it is nested deeper than {MAX_DEPTH} levels")
    return text


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _deeper_than(value: Any, limit: int) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(_deeper_than(part, limit - 1) for part in parts)


def whole(field: str, value: object, low: int, high: int) -> int:
    """A whole number. Raises InvalidJob."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidJob(field, f"{short(value)} is not a whole number from {low} to {high}")
    return value


def seconds_of(field: str, value: object, high: float) -> float:
    """A number of seconds from 0 on. Raises InvalidOption."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
        raise InvalidOption(f"{field}: {short(value)} is not a number of seconds from 0 to {high:g}")
    return float(value)


def capabilities(field: str, value: str | Iterable[str]) -> str:
    """As they are stored. Raises InvalidJob."""
    try:
        names = value.replace(",", " ").split() if isinstance(value, str) else list(value)
    except TypeError:
        raise InvalidJob(field, f"{short(value)} is not a list of capabilities") from None
    for name in names:
        if not isinstance(name, str) or not CAPABILITY.fullmatch(name):
            raise InvalidJob(field, f"{short(name)} is not a capability: 1 to 100 printable characters, no spaces")
    text = normalise(names)
    if len(text) > MAX_REQUIRES:
        raise InvalidJob(field, f"the capabilities have {len(text)} characters together; at most {MAX_REQUIRES}")
    return text


def json_object(field: str, value: object) -> str | None:
    """JSON text of an object; None for an empty one. Raises InvalidJob."""
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise InvalidJob(field, f"{short(value)} is not a JSON object")
    text = encode(field, dict(value))
    size = len(text.encode())
    if size > MAX_META_BYTES:
        raise InvalidJob(field, f"it has {size} bytes of JSON; the limit is {MAX_META_BYTES} (16 KiB)")
    return text


def delay_of(field: str, given: str | float) -> Delay:
    """Raises InvalidJob."""
    try:
        delay = Delay(seconds(given))
    except ValueError as error:
        raise InvalidJob(field, str(error)) from None
    _within(field, time.time() + delay)
    return delay


def moment(field: str, at: datetime.datetime | float | None) -> float | None:
    """A time as Unix seconds. Raises InvalidJob."""
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None or at.utcoffset() is None:
            raise InvalidJob(field, "the datetime has no time zone; use datetime.now(UTC) or .astimezone()")
        return _within(field, at.timestamp())
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        raise InvalidJob(field, f"{short(at)} is neither a datetime nor Unix seconds")
    return _within(field, at)


def _within(field: str, due: float) -> float:
    if not math.isfinite(due) or not 0 <= due < MAX_TIME:
        raise InvalidJob(field, "the time is out of range; times are Unix seconds, not milliseconds")
    return float(due)


def known_time(value: float | None) -> float | None:
    """A time that somebody else may have written, as Unix seconds; None for what is no time, such as infinity."""
    return value if value is not None and 0 < value < MAX_TIME else None


def text_key(field: str, value: object, most: int) -> str:
    """A text that the database can hold, and find. Raises InvalidJob."""
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise InvalidJob(field, f"{short(value)} is not a string of 1 to {most} characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidJob(field, "it contains a lone surrogate, which UTF-8 cannot encode") from None
    if "\0" in value:
        raise InvalidJob(field, "it contains a NUL character")
    return value


def job_id_of(value: Any) -> int:
    """A job's id. Raises InvalidJob for what is not a whole number, JobNotFound for one that no row can have."""
    if not is_possible_id(value, "job_id"):
        raise JobNotFound(value)
    return int(value)


def is_possible_id(value: object, field: str) -> bool:
    """Whether a row can have this id. Raises InvalidJob for what is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(field, f"{short(value)} is not a whole number")
    return -(2**63) <= value <= LAST_ID


def waiting_limit(timeout: object) -> float | None:
    """Seconds, at least 0; None for no limit. Raises InvalidJob for what is not a number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout != timeout:
        raise InvalidJob("timeout", f"{short(timeout)} is not a number of seconds")
    return float(max(0, timeout)) if timeout < _LONGEST_WAIT else None


def short(value: object) -> str:
    """A value for a message: at most 60 printable characters of ASCII."""
    try:
        text = ascii(value[:60] if isinstance(value, (str, bytes)) else value)
    except Exception:  # a whole number of thousands of digits, or an object's own fault
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


OPTIONS: Mapping[str, Option] = {
    name: option._replace(column=option.column or name)
    for name, hint in get_type_hints(JobOptions, include_extras=True).items()
    for option in hint.__metadata__
}
"""Every option of an enqueue, as JobOptions defines it: all that is not in the types of Python is derived from this."""
