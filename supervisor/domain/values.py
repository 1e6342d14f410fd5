"""What single values of jobs and options may be: a check returns the value as it is stored, or raises InvalidJob."""

from __future__ import annotations

import datetime
import math
import re
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from supervisor.domain.errors import InvalidJob, InvalidOption, JobNotFound
from supervisor.domain.job import Delay, normalise
from supervisor.domain.text import compact_json, seconds

MAX_PAYLOAD_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_TIME = 1e11  # seconds: the year 5138; milliseconds since 1970 exceed it
MAX_REQUIRES = 1000
MAX_META_BYTES = 16 << 10
LAST_ID = 2**63 - 1
_LONGEST_WAIT = 1e9  # seconds, 31 years: clocks of the system end some centuries later
TYPE = re.compile(r"[a-zA-Z0-9_.:/-]{1,100}")
CAPABILITY = re.compile(r"[!-~]{1,100}")  # printable ASCII without the space that separates them


def checked_type(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJob("type", f'write the name of a type, like "mail", in place of this {type(value).__name__}')
    if not TYPE.fullmatch(value):
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
    if brackets(text) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise InvalidJob(field, f"it is nested deeper than {MAX_DEPTH} levels")
    return text


def brackets(text: str) -> int:
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


def word(field: str, value: object, *words: str) -> str:
    """One of these words. Raises InvalidJob."""
    if value not in words:
        raise InvalidJob(field, f"{short(value)} is neither {' nor '.join(words)}")
    return str(value)


def job_ids(field: str, value: object, most: int) -> tuple[int, ...] | None:
    """Ids, each once; None for none. Raises InvalidJob."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidJob(field, f"{short(value)} is not a list of ids")
    found = tuple(dict.fromkeys(islice(value, most + 1)))
    if len(found) > most:
        raise InvalidJob(field, f"it has more than {most} ids")
    for each in found:
        if not is_possible_id(each, field):
            raise InvalidJob(field, f"there is no job {each}")
    return found or None


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


def delay_of(field: str, given: str | float | datetime.timedelta) -> Delay:
    """Raises InvalidJob."""
    try:
        delay = Delay(seconds(given.total_seconds() if isinstance(given, datetime.timedelta) else given))
    except ValueError as error:
        raise InvalidJob(field, str(error)) from None
    _within(field, time.time() + delay)
    return delay


def time_of(text: str) -> datetime.datetime:
    """A time in ISO 8601. Raises ValueError."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{short(text)} is not a time; write it like 2027-01-31T08:00+01:00") from None
    if at.tzinfo is None:
        raise ValueError("it has no time zone; add Z or an offset like +01:00")
    return at


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
