"""The conversation between a worker and its program, without any input or output.

One JSON object a line, in UTF-8. docs/subprocess.md describes the messages for those who write programs;
this is the worker's side as a state machine:

    GREETING --hello--> IDLE --job, batch--> BUSY --result, error--> IDLE --bye--> LEAVING
    any state --what the state does not allow--> BROKEN

After a batch it is idle when each of its jobs has its answer, or the batch an error.

Lines are handled one at a time, in order: what follows a job's last message in the same read is examined only
when it is asked for, so it cannot undo that message. After a violation nothing is sent or read any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, NoReturn

from supervisor.domain.intake import short
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, clipped
from supervisor.domain.text import refuse_constant, seconds

VERSION = 1
MAX_LINE = 1 << 20  # bytes, without the line break
MAX_FIELDS = 16 * 1024  # characters of the fields of a log line, as JSON

LEVELS = ("debug", "info", "warning", "error")
KINDS = ("exception", "exit", "memory", "payload", "result")
"""The kinds of failure that a program may report; the default is an exception."""
CHILD = frozenset({"type", "payload", "priority", "delay", "at", "requires", "max_attempts", "unique_key"})
"""The keys that a job to be enqueued with the completion may have."""

Message = dict[str, Any]


class Phase(Enum):
    GREETING = "greeting"  # the program is starting: its hello is expected
    IDLE = "idle"
    BUSY = "busy"  # the program has a job: a result or an error is expected
    LEAVING = "leaving"  # it was told to exit
    BROKEN = "broken"  # it broke a rule; nothing counts any more


class Violation(Exception):
    """The program broke the protocol and must be killed. The message says what it did: "sent a …"."""


class ProgramJob(NamedTuple):
    """A job as a program gets it; `key` is its idempotency key, if there is one."""

    job_id: int
    type: str
    attempt: int
    payload: Any
    key: str | None = None


class Conversation:
    """What each side may send when. Bytes go in by `hear`, messages come out by `next`; the requests return bytes."""

    def __init__(self) -> None:
        self.phase = Phase.GREETING
        self._id = 0  # the latest number of a job or a batch
        self._first = 0  # the number of the first job that the program has
        self._batch = 0  # the number of its batch, if it has one
        self._open: set[int] = set()  # the jobs without an answer
        self._heard = bytearray()
        self._searched = 0  # bytes of the input already searched for a line break

    # What the worker sends

    def greet(self, pool: str, capabilities: Sequence[str], options: Message, device: str | None = None) -> bytes:
        """The first line: what the program may need to know before it loads anything."""
        return _line(
            type="hello", protocol=VERSION, pool=pool, capabilities=list(capabilities), options=options, device=device
        )

    def hand_over(self, jobs: Sequence[ProgramJob], timeout: float, *, together: bool = False) -> bytes:
        """Hand over a job, or several `together`. Raises ValueError for a payload that JSON cannot represent."""
        assert self.phase is Phase.IDLE
        batch = self._id + 1 if together else 0
        first = self._id + 1 + together
        written = [
            {
                "id": number,
                "job_id": job.job_id,
                "idempotency_key": job.key,
                "job_type": job.type,
                "attempt": job.attempt,
                "payload": job.payload,
            }
            for number, job in enumerate(jobs, first)
        ]
        if together:
            line = _line(type="batch", id=batch, timeout=timeout, jobs=written)
        else:
            line = _line(type="job", timeout=timeout, **written[0])
        self._id = first + len(jobs) - 1
        self._first, self._batch, self._open = first, batch, set(range(first, self._id + 1))
        self.phase = Phase.BUSY
        return line

    def cancel(self, *, now: bool, place: int | None = None) -> bytes:
        """Ask for the jobs without an answer to be stopped, or for the one at this place: when convenient, or `now`,
        before TERM is sent.
        """
        assert self.phase is Phase.BUSY
        asked = sorted(self._open) if place is None else sorted(self._open & {self._first + place})
        return b"".join(_line(type="cancel", id=number, now=now) for number in asked)

    def bye(self) -> bytes:
        """The end: whatever the program still sends is ignored."""
        self.phase = Phase.LEAVING
        self._heard.clear()
        return _line(type="bye")

    # What the program sends

    def hear(self, data: bytes) -> None:
        """Take in what was read, in pieces of any size."""
        if self.phase not in (Phase.LEAVING, Phase.BROKEN):
            self._heard += data

    def next(self) -> Message | None:
        """The next message, with the keys that its type has, and the `place` of its job: 0 unless there are several,
        None for a whole batch. None until more is read. Raises Violation, and returns nothing after that.
        """
        line = self._next_line()
        if line is None:
            return None
        message = self._parsed(line)
        kind: Any = message.get("type")
        number: Any = message.get("id")
        keys = _KEYS.get(kind) if isinstance(kind, str) else None
        if keys is None:
            self._break(f"a message of an unknown type, {short(kind)}")
        self._check_order(kind, number)
        found: Message = {"type": kind}
        for key, check in keys.items():
            try:
                found[key] = check(message.get(key))
            except ValueError as error:
                self._break(f"{_article(kind)} with an invalid {key}: {error}")
        if kind == "hello":
            self.phase = Phase.IDLE
        elif kind != "log":
            found["place"] = None if number == self._batch else number - self._first
        if kind in ("result", "error"):
            self._open.discard(number)
            if not self._open or number == self._batch:
                self.phase = Phase.IDLE
        return found

    def _next_line(self) -> bytes | None:
        end = self._heard.find(b"\n", self._searched)
        if (end if end >= 0 else len(self._heard)) > MAX_LINE:
            self._break(f"a line of more than {MAX_LINE} bytes (1 MiB)")
        if end < 0:
            self._searched = len(self._heard)
            return None
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        self._searched = 0
        return line

    def _parsed(self, line: bytes) -> Message:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self._break(f"a line that is not valid UTF-8: {short(line)}")
        try:
            message = json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            self._break(f"a line that is not valid JSON: {short(text)}")
        if not isinstance(message, dict):
            self._break(f"a line that is not a JSON object: {short(message)}")
        return message

    def _check_order(self, kind: Any, number: Any) -> None:
        if kind == "log":
            return
        if (self.phase is Phase.GREETING) is not (kind == "hello"):
            self._break("a second hello" if kind == "hello" else f"{_article(kind)} before its hello")
        if kind == "hello":
            return
        of_batch = kind in ("progress", "extend", "error") and number == self._batch > 0
        if self.phase is not Phase.BUSY or type(number) is not int or not (of_batch or number in self._open):
            self._break(f"{_article(kind)} with an invalid id, {short(number)}")

    def _break(self, what: str) -> NoReturn:
        self.phase = Phase.BROKEN
        self._heard.clear()
        raise Violation(f"sent {what}")


# What each key may hold: from its value, None if it is missing, to what it means. Raises ValueError.


def _anything(value: Any) -> Any:
    return value


def _of(kind: type, value: Any, words: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{short(value)} is not {words}")
    return value


def _text(value: Any, limit: int = MAX_MESSAGE) -> str:
    """A text that the database and the log can store."""
    return clipped(_of(str, value, "a text") or "", limit)


def _flag(value: Any) -> bool:
    return bool(_of(bool, value, "true or false"))


def _one_of(values: Sequence[Any], value: Any) -> Any:
    if value not in values:
        raise ValueError(f"{short(value)}; it must be {' or '.join(map(str, values))}")
    return value


def _words(value: Any) -> frozenset[str] | None:
    return None if value is None else frozenset(map(_text, _of(list, value, "a list")))


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{short(value)} is not a number")
    return min(max(value, 0.0), 1.0)


def _fields(value: Any) -> Message:
    fields: Message = _of(dict, value, "an object") or {}
    try:
        return fields if len(json.dumps(fields)) <= MAX_FIELDS else {"left_out": "too long"}
    except RecursionError:
        return {"left_out": "too long"}


def _children(value: Any) -> list[Message]:
    for child in (children := _of(list, value, "a list") or []):
        if not isinstance(child, dict) or "type" not in child or not child.keys() <= CHILD:
            raise ValueError("it has a job without a type, or with an unknown key")
    return children


_KEYS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "hello": {"protocol": lambda value: _one_of([VERSION], value), "capabilities": _words, "batches": _flag},
    "log": {"text": _text, "level": lambda value: _one_of(LEVELS, value or "info"), "fields": _fields},
    "progress": {"fraction": _fraction, "text": _text},
    "extend": {"seconds": seconds},
    "emit": {"chunk": _anything},
    "result": {"value": _anything, "enqueue": _children},
    "error": {
        "message": lambda value: _text(value) or "the program gave no reason",
        "kind": lambda value: value if value in KINDS else "exception",
        "permanent": _flag,
        "retry": _flag,
        "after": lambda value: None if value is None else seconds(value),
        "traceback": lambda value: _text(value, MAX_TEXT) or None,
    },
}


def _line(**message: Any) -> bytes:
    # ASCII, so that no payload can contain what UTF-8 cannot encode, or what another language takes for a line break.
    try:
        # TOML has times, which options may contain and JSON cannot represent: they are sent as text.
        return json.dumps(message, allow_nan=False, default=str, separators=(",", ":")).encode() + b"\n"
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _article(kind: object) -> str:
    return f"{'an' if str(kind)[:1] in 'aeiou' else 'a'} {kind}"
