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
from collections.abc import Sequence
from dataclasses import dataclass, field
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


class Phase(Enum):
    GREETING = "greeting"  # the program is starting: its hello is expected
    IDLE = "idle"
    BUSY = "busy"  # the program has a job: a result or an error is expected
    LEAVING = "leaving"  # it was told to exit
    BROKEN = "broken"  # it broke a rule; nothing counts any more


class Violation(Exception):
    """The program broke the protocol and must be killed. The message says what it did: "sent a …"."""


class Hello(NamedTuple):
    """`capabilities` is None if the program does not say what it can do; `batches`: it takes several jobs at once."""

    capabilities: frozenset[str] | None
    batches: bool = False


class Progress(NamedTuple):
    fraction: float
    text: str


class Extend(NamedTuple):
    seconds: float


class Emit(NamedTuple):
    """A piece of the answer: to the only job, or to the one at this place of a batch."""

    chunk: Any
    place: int = 0


class Log(NamedTuple):
    level: str
    text: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The job is done. `children` are the arguments of jobs to be enqueued with it."""

    value: Any
    children: list[dict[str, Any]] = field(default_factory=list)


class Error(NamedTuple):
    """The attempt failed. `retry` asks for another one, in `after` seconds; `permanent` for none."""

    message: str
    kind: str = "exception"
    permanent: bool = False
    retry: bool = False
    after: float | None = None
    traceback: str | None = None


class Answer(NamedTuple):
    """To the job at this place of a batch."""

    place: int
    reply: Result | Error


class JobOfBatch(NamedTuple):
    job_id: int
    type: str
    attempt: int
    payload: Any
    key: str | None


Event = Hello | Progress | Extend | Emit | Log | Result | Error | Answer
Message = dict[str, Any]


class Conversation:
    """What each side may send when. Bytes go in by `hear`, events come out by `next`; the requests return bytes."""

    def __init__(self) -> None:
        self.phase = Phase.GREETING
        self._id = 0  # of the latest job
        self._batch = 0  # the id of the batch that it has, if it is one; those of its jobs follow
        self._open: set[int] = set()  # the jobs without an answer
        self._heard = bytearray()
        self._searched = 0  # bytes of the input already searched for a line break

    # What the worker sends

    def greet(
        self, pool: str, capabilities: tuple[str, ...], options: dict[str, Any], device: str | None = None
    ) -> bytes:
        """The first line: what the program may need to know before it loads anything."""
        return _line(
            type="hello",
            protocol=VERSION,
            pool=pool,
            capabilities=list(capabilities),
            options=options,
            device=device,
        )

    def job(self, job_id: int, type: str, attempt: int, payload: Any, timeout: float, key: str | None = None) -> bytes:
        """Hand over a job. Raises ValueError for a payload that JSON cannot represent."""
        assert self.phase is Phase.IDLE
        line = _line(
            type="job",
            id=self._id + 1,
            job_id=job_id,
            idempotency_key=key,
            job_type=type,
            attempt=attempt,
            timeout=timeout,
            payload=payload,
        )
        self._id += 1
        self._batch, self._open = 0, {self._id}
        self.phase = Phase.BUSY
        return line

    def batch(self, jobs: Sequence[JobOfBatch], timeout: float) -> bytes:
        """Hand over several jobs at once. Raises ValueError for a payload that JSON cannot represent."""
        assert self.phase is Phase.IDLE
        batch = self._id + 1
        written = [
            {
                "id": batch + 1 + place,
                "job_id": job.job_id,
                "idempotency_key": job.key,
                "job_type": job.type,
                "attempt": job.attempt,
                "payload": job.payload,
            }
            for place, job in enumerate(jobs)
        ]
        line = _line(type="batch", id=batch, timeout=timeout, jobs=written)
        self._id = batch + len(jobs)
        self._batch, self._open = batch, set(range(batch + 1, self._id + 1))
        self.phase = Phase.BUSY
        return line

    def cancel(self, *, now: bool, place: int | None = None) -> bytes:
        """Ask for the jobs without an answer to be stopped, or for the one at this place of a batch: when convenient,
        or `now`, before TERM is sent.
        """
        assert self.phase is Phase.BUSY
        asked = sorted(self._open) if place is None else sorted(self._open & {self._batch + 1 + place})
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

    def next(self) -> Event | None:
        """The next event; None until more is read. Raises Violation, and returns nothing after that."""
        line = self._next_line()
        return None if line is None else self._event_of(self._parsed(line))

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

    def _event_of(self, message: Message) -> Event:
        kind = message.get("type")
        if kind == "log":
            return self._log(message)
        if kind == "hello":
            return self._hello(message)
        if kind not in ("progress", "extend", "emit", "result", "error"):
            self._break(f"a message of an unknown type, {short(kind)}")
        number: Any = message.get("id")
        self._check_id(kind, number)
        if kind == "progress":
            return Progress(self._fraction(message), self._text(message, "text"))
        if kind == "extend":
            return Extend(self._seconds(message, "seconds", message.get("seconds")))
        if kind == "emit":
            return self._emit(message, number)
        event = self._result(message) if kind == "result" else self._error(message)
        self._open.discard(number)
        if not self._open or number == self._batch:
            self.phase = Phase.IDLE
        return Answer(number - self._batch - 1, event) if self._batch and number != self._batch else event

    def _check_id(self, kind: Any, number: Any) -> None:
        if self.phase is Phase.GREETING:
            self._break(f"{_article(kind)} before its hello")
        if type(number) is not int or not 1 <= number <= self._id:
            self._break(f"{_article(kind)} with an invalid id, {short(number)}")
        if self.phase is Phase.BUSY and number in self._open:
            return
        if self.phase is not Phase.BUSY or not self._batch <= number or not self._batch:
            self._break(f"a late {kind}: job {number} had ended")
        if number > self._batch:
            self._break(f"{_article(kind)} for job {number}, which had its answer")
        if kind == "result":
            self._break(f"a result for the batch {number} instead of one for each of its jobs")

    def _hello(self, message: Message) -> Hello:
        if self.phase is not Phase.GREETING:
            self._break("a second hello")
        if message.get("protocol") != VERSION:
            self._break(f"a hello of protocol {short(message.get('protocol'))}; this is protocol {VERSION}")
        words = message.get("capabilities")
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            self._break("a hello whose capabilities are not a list of texts")
        batches = message.get("batches", False)
        if not isinstance(batches, bool):
            self._break("a hello whose batches is not true or false")
        self.phase = Phase.IDLE
        return Hello(None if words is None else frozenset(words), batches)

    def _log(self, message: Message) -> Log:
        level, fields = message.get("level", "info"), message.get("fields", {})
        if level not in LEVELS or not isinstance(fields, dict):
            self._break("a log message with an invalid level or invalid fields")
        return Log(level, self._text(message, "text"), fields if _is_small(fields) else {"left_out": "too long"})

    def _result(self, message: Message) -> Result:
        children = message.get("enqueue", [])
        if not (isinstance(children, list) and all(isinstance(child, dict) for child in children)):
            self._break("a result whose `enqueue` is not a list of objects")
        for child in children:
            if "type" not in child or not child.keys() <= CHILD:
                self._break("a result that enqueues a job without a type, or with an unknown key")
        return Result(message.get("value"), children)

    def _emit(self, message: Message, number: int) -> Emit:
        if number == self._batch:
            self._break(f"an emit for the batch {number} instead of one of its jobs")
        return Emit(message.get("chunk"), number - self._batch - 1 if self._batch else 0)

    def _error(self, message: Message) -> Error:
        after = message.get("after")
        permanent, retry = message.get("permanent", False), message.get("retry", after is not None)
        if not isinstance(permanent, bool) or not isinstance(retry, bool) or (permanent and retry):
            self._break("an error that asks for a retry and is permanent, or whose flags are not true or false")
        kind = message.get("kind", "exception")
        return Error(
            self._text(message, "message") or "the program gave no reason",
            kind if kind in KINDS else "exception",
            permanent=permanent,
            retry=retry,
            after=None if after is None else self._seconds(message, "after", after),
            traceback=self._text(message, "traceback", MAX_TEXT) or None,
        )

    def _fraction(self, message: Message) -> float:
        value = message.get("fraction")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._break(f"a progress with an invalid fraction, {short(value)}")
        return min(max(value, 0.0), 1.0)

    def _seconds(self, message: Message, key: str, value: Any) -> float:
        try:
            return seconds(value)
        except ValueError as error:
            self._break(f"{_article(message['type'])} with an invalid {key}: {error}")

    def _text(self, message: Message, key: str, limit: int = MAX_MESSAGE) -> str:
        """A text that the database and the log can store."""
        value = message.get(key)
        if value is not None and not isinstance(value, str):
            self._break(f"{_article(message['type'])} whose {key} is not a string")
        return clipped(value or "", limit)

    def _break(self, what: str) -> NoReturn:
        self.phase = Phase.BROKEN
        self._heard.clear()
        raise Violation(f"sent {what}")


def _line(**message: Any) -> bytes:
    # ASCII, so that no payload can contain what UTF-8 cannot encode, or what another language takes for a line break.
    try:
        # TOML has times, which options may contain and JSON cannot represent: they are sent as text.
        return json.dumps(message, allow_nan=False, default=str, separators=(",", ":")).encode() + b"\n"
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _article(kind: object) -> str:
    return f"{'an' if str(kind)[:1] in 'aeiou' else 'a'} {kind}"


def _is_small(fields: Message) -> bool:
    try:
        return len(json.dumps(fields)) <= MAX_FIELDS
    except RecursionError:
        return False
