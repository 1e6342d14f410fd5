"""The messages between a worker and its program, and their order, without any input or output.

One JSON object a line, in UTF-8. docs/subprocess.md describes the messages for those who write programs;
this is the worker's side as a state machine:

    GREETING --hello--> IDLE --job, batch--> BUSY --result, error--> IDLE --bye--> CLOSED
    any state --what the state does not allow--> CLOSED

After a batch it is idle when each of its jobs has its answer, or the batch an error.

Lines are handled one at a time, in order: what follows a job's last message in the same read is examined only
when it is asked for, so it cannot undo that message. When it is closed nothing is read any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from supervisor.domain.enqueueing import OPTIONS
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, clipped
from supervisor.domain.text import refuse_constant, seconds
from supervisor.domain.values import short

VERSION = 1
MAX_LINE = 1 << 20  # bytes, without the line break
MAX_FIELDS = 16 * 1024  # characters of the fields of a log line, as JSON

LEVELS = ("debug", "info", "warning", "error")
KINDS = ("exception", "exit", "memory", "payload", "result")
"""The kinds of failure that a program may report; the default is an exception."""
CHILD = frozenset({"type", "payload", *OPTIONS})
"""The keys that a job to be enqueued with the completion may have."""

Message = dict[str, Any]


class Phase(Enum):
    GREETING = "greeting"  # the program is starting: its hello is expected
    IDLE = "idle"
    BUSY = "busy"  # the program has a job: a result or an error is expected
    CLOSED = "closed"  # it was told to exit, or it broke a rule; nothing counts any more


class Violation(Exception):
    """The program broke the protocol and must be killed. The message says what it did: "sent a …"."""


class Conversation:
    """What each side may send when. Bytes go in by `hear`, messages come out by `next`; the requests return bytes."""

    def __init__(self) -> None:
        self.phase = Phase.GREETING
        self._first = self._last = 0  # the numbers of the jobs that the program has
        self._batch = 0  # the number of its batch, if it has one
        self._open: set[int] = set()  # the jobs without an answer
        self._heard = bytearray()

    def hand_over(self, jobs: Sequence[Message], timeout: float, *, together: bool = False) -> bytes:
        """Hand over a job, or several `together`. Raises ValueError for a payload that JSON cannot represent."""
        assert self.phase is Phase.IDLE
        first = self._last + 1 + together
        numbered = [{"id": number, **job} for number, job in enumerate(jobs, first)]
        if together:
            sent = line(type="batch", id=first - 1, timeout=timeout, jobs=numbered)
        else:
            sent = line(type="job", timeout=timeout, **numbered[0])
        self._first, self._last, self._batch = first, first + len(jobs) - 1, first - 1 if together else 0
        self._open = set(range(first, self._last + 1))
        self.phase = Phase.BUSY
        return sent

    def cancel(self, *, now: bool, index: int | None = None) -> bytes:
        """Ask for the jobs without an answer to be stopped, or for the one with this index: when convenient, or `now`,
        before TERM is sent.
        """
        asked = self._open if index is None else self._open & {self._first + index}
        return b"".join(line(type="cancel", id=number, now=now) for number in sorted(asked))

    def bye(self) -> bytes:
        """The end: whatever the program still sends is ignored."""
        self._close()
        return line(type="bye")

    def hear(self, data: bytes) -> None:
        """Take in what was read, in pieces of any size."""
        if self.phase is not Phase.CLOSED:
            self._heard += data

    def next(self) -> Message | None:
        """The next message, with the keys that its type has, and the `index` of its job: 0 unless there are several,
        None for a whole batch. None until more is read. Raises Violation, and returns nothing after that.
        """
        end = self._heard.find(b"\n")
        try:
            if (end if end >= 0 else len(self._heard)) > MAX_LINE:
                raise ValueError(f"a line of more than {MAX_LINE} bytes (1 MiB)")
            if end < 0:
                return None
            read = bytes(self._heard[:end])
            del self._heard[: end + 1]
            return self._message(_parsed(read))
        except ValueError as error:
            self._close()
            raise Violation(f"sent {error}") from None

    def _close(self) -> None:
        self.phase = Phase.CLOSED
        self._heard.clear()

    def _message(self, message: Message) -> Message:
        """Raises ValueError for what is out of order, or not as documented."""
        kind, number = message.get("type"), message.get("id")
        keys = _KEYS.get(kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or keys is None:
            raise ValueError(f"a message of an unknown type, {short(kind)}")
        named = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        greeting = self.phase is Phase.GREETING
        if kind != "log" and greeting is not (kind == "hello"):
            raise ValueError(f"{named} before its hello" if greeting else "a second hello")
        found: Message = {"type": kind}
        of_batch = kind in ("progress", "extend", "error") and number == self._batch > 0
        if kind not in ("log", "hello"):
            if self.phase is not Phase.BUSY or type(number) is not int or not (of_batch or number in self._open):
                raise ValueError(f"{named} with an invalid id, {short(number)}")
            found["index"] = None if of_batch else number - self._first
        for key, check in keys.items():
            try:
                found[key] = check(message.get(key))
            except ValueError as error:
                raise ValueError(f"{named} with an invalid {key}: {error}") from None
        if kind in ("result", "error"):
            self._open = set() if of_batch else self._open - {number}
        if kind in ("hello", "result", "error") and not self._open:
            self.phase = Phase.IDLE
        return found


def greeting(pool: str, capabilities: Sequence[str], options: Mapping[str, Any], device: str | None) -> bytes:
    """The first line: what the program may need to know before it loads anything."""
    about = {"pool": pool, "capabilities": list(capabilities), "options": dict(options), "device": device}
    return line(type="hello", protocol=VERSION, **about)


def line(**message: Any) -> bytes:
    """A message to the program. Raises ValueError for what JSON cannot represent."""
    # ASCII, so that no payload can contain what UTF-8 cannot encode, or what another language takes for a line break.
    try:
        # TOML has times, which options may contain and JSON cannot represent: they are sent as text.
        return json.dumps(message, allow_nan=False, default=str, separators=(",", ":")).encode() + b"\n"
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parsed(read: bytes) -> Message:
    try:
        message = json.loads(read.decode(), parse_constant=refuse_constant)
    except UnicodeDecodeError:
        raise ValueError(f"a line that is not valid UTF-8: {short(read)}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"a line that is not valid JSON: {short(read.decode())}") from None
    if not isinstance(message, dict):
        raise ValueError(f"a line that is not a JSON object: {short(message)}")
    return message


# What each key may hold: from its value, None if it is missing, to what it means. Raises ValueError.


def _of(kind: type, value: Any, words: str, default: Any) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{short(value)} is not {words}")
    return default if value is None else value


def _text(value: Any, limit: int = MAX_MESSAGE) -> str:
    """A text that the database and the log can store."""
    return clipped(_of(str, value, "a text", ""), limit)


def _flag(value: Any) -> bool:
    return bool(_of(bool, value, "true or false", False))


def _one_of(values: Sequence[Any], value: Any) -> Any:
    if value not in values:
        raise ValueError(f"{short(value)}; it must be {' or '.join(map(str, values))}")
    return value


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{short(value)} is not a number")
    return min(max(value, 0.0), 1.0)


def _fields(value: Any) -> Message:
    fields: Message = _of(dict, value, "an object", {})
    try:
        return fields if len(json.dumps(fields)) <= MAX_FIELDS else {"left_out": "too long"}
    except RecursionError:
        return {"left_out": "too long"}


def _children(value: Any) -> list[Message]:
    children: list[Message] = _of(list, value, "a list", [])
    if not all(isinstance(child, dict) and "type" in child and child.keys() <= CHILD for child in children):
        raise ValueError("it has a job without a type, or with an unknown key")
    return children


_KEYS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "hello": {
        "protocol": lambda value: _one_of([VERSION], value),
        "capabilities": lambda value: value if value is None else frozenset(map(_text, _of(list, value, "a list", ()))),
        "batches": _flag,
    },
    "log": {"text": _text, "level": lambda value: _one_of(LEVELS, value or "info"), "fields": _fields},
    "progress": {"fraction": _fraction, "text": _text},
    "extend": {"seconds": seconds},
    "emit": {"chunk": lambda value: value},
    "result": {"value": lambda value: value, "enqueue": _children},
    "error": {
        "message": lambda value: _text(value) or "the program gave no reason",
        "kind": lambda value: value if value in KINDS else "exception",
        "permanent": _flag,
        "retry": _flag,
        "after": lambda value: value if value is None else seconds(value),
        "traceback": lambda value: _text(value, MAX_TEXT) or None,
    },
}
