"""Payloads and times as written on a command line."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from typing import Any

from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import MAX_DEPTH, MAX_PAYLOAD_BYTES
from supervisor.domain.text import refuse_constant

# A longer text cannot be a valid payload, even if much of it is white space.
_LONGEST = 8 * MAX_PAYLOAD_BYTES


def decoded(text: str, field: str = "payload") -> Any:
    """The value of a JSON text. Raises InvalidJob for the field."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise InvalidJob(field, f"it is nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise InvalidJob(field, f"it is not valid JSON: {error.msg} (at {place})") from None
    except ValueError as error:
        raise InvalidJob(field, f"it is not valid JSON: {error}") from None


def lines_of_stdin() -> Iterator[tuple[int, str]]:
    """The lines of standard input with their numbers, without empty ones. Raises InvalidJob."""
    if sys.stdin is None:
        return
    number = 0
    while raw := sys.stdin.buffer.readline(_LONGEST):
        number += 1
        if len(raw) == _LONGEST:
            raise InvalidJob("payload", f"line {number} is over {_LONGEST >> 20} MiB; nothing was enqueued")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise InvalidJob("payload", f"line {number} is not UTF-8 text; nothing was enqueued") from None
        if text:
            yield number, text


def moment(text: str) -> datetime.datetime:
    """A time as ISO 8601 writes it, with its zone. Raises InvalidJob."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob("at", f"{text!r} is not a time; write it like 2027-01-31T08:00+01:00") from None
    if time.tzinfo is None:
        raise InvalidJob("at", f"{text!r} has no time zone; add Z or an offset like +01:00")
    return time
