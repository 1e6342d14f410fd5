"""What somebody who follows a job is sent: its states, its attempts, and what the current one emits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import encode
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.text import json_safe, refuse_constant

MAX_CHUNK_BYTES = 16 * 1024  # of JSON: many of them fit into the ring of a worker
_LAST_ID = re.compile(r"(\d{1,18})\.(\d{1,18})")


class Position(NamedTuple):
    """How far a stream is: the run, by its token, and the number of its last chunk that was sent."""

    token: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.token}.{self.number}"


class Chunk(NamedTuple):
    """One piece of a run's answer, as a worker has written it. `number` counts the chunks of its run from 1; `data` is
    JSON.
    """

    job: int
    token: int
    attempt: int
    number: int
    data: bytes

    @property
    def at(self) -> Position:
        return Position(self.token, self.number)

    def is_valid(self) -> bool:
        """Whether it is JSON: a worker may have died while it wrote, or another program has written there."""
        try:
            json.loads(self.data.decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return False
        return True


def encoded_chunk(value: object) -> bytes:
    """The JSON of a chunk. Raises InvalidJob for what JSON cannot represent, or is too large."""
    data = encode("chunk", value).encode()
    if len(data) > MAX_CHUNK_BYTES:
        raise InvalidJob("chunk", f"it has {len(data)} bytes of JSON; the limit is {MAX_CHUNK_BYTES} (16 KiB)")
    return data


class StreamEvent(NamedTuple):
    """`at` is where a stream goes on that was cut off behind this event.

    With the names "job" and "end" comes the state, `job`; None at the end of a job that was deleted. With "attempt", a
    run has begun; `elsewhere`: what it emits cannot be read here. With "chunk" comes a chunk, with "lost" the number of
    those that are missing before the next one, with "trouble" an error.
    """

    at: Position
    name: str
    attempt: int = 0
    job: JobEvent | None = None
    chunk: Chunk | None = None
    lost: int = 0
    elsewhere: bool = False
    error: str = ""


def position_of(last_id: str) -> Position | None:
    """The position that an event's id names; None if none does."""
    found = _LAST_ID.fullmatch(last_id)
    return Position(int(found[1]), int(found[2])) if found else None


class Follower:
    """One stream of a job's events."""

    def __init__(self, at: Position | None = None) -> None:
        self.at = at or Position()
        self.ended = False
        self._open = True  # the run at `at` may go on; one that has ended says nothing more
        self._state: JobEvent | None = None
        self._trouble: str | None = None

    def trouble(self, error: str) -> list[StreamEvent]:
        """The database cannot be used for now."""
        if error == self._trouble:
            return []
        self._trouble = error
        return [StreamEvent(self.at, "trouble", error=error)]

    def deleted(self) -> list[StreamEvent]:
        self.ended = True
        return [StreamEvent(self.at, "end")]

    def news(self, state: JobEvent, chunks: Iterable[Chunk], *, elsewhere: bool = False) -> list[StreamEvent]:
        """What is new. `chunks` are those behind `at`, in order. `elsewhere`: those of this run are not here."""
        there = [*chunks]
        changed = state != self._state or self._trouble is not None
        self._state, self._trouble = state, None
        self.ended = state.status.finished
        found = self._sent(there)  # of a run that was there before
        # A job that has ended need not have had a run.
        ended = self.ended and any(chunk.token == state.token for chunk in there)
        if state.token != self.at.token and (ended or state.status is Status.RUNNING):
            found.append(self._attempt(state, elsewhere))
        now = [self._job(state)] if changed and state.status is Status.RUNNING else []
        found += now + self._sent(there)
        self._open = state.status is Status.RUNNING
        return found if now or not changed else [*found, self._job(state)]

    def _sent(self, chunks: Iterable[Chunk]) -> list[StreamEvent]:
        """The chunks of the current run that were not sent yet, and how many are missing before each."""
        found = []
        for chunk in chunks:
            if not self._open or chunk.token != self.at.token or chunk.number <= self.at.number:
                continue
            if missing := chunk.number - self.at.number - 1:
                self.at = Position(self.at.token, chunk.number - 1)
                found.append(StreamEvent(self.at, "lost", chunk.attempt, lost=missing))
            self.at = chunk.at
            found.append(StreamEvent(self.at, "chunk", chunk.attempt, chunk=chunk))
        return found

    def _attempt(self, state: JobEvent, elsewhere: bool) -> StreamEvent:
        self.at, self._open = Position(state.token), True
        return StreamEvent(self.at, "attempt", state.attempt, elsewhere=elsewhere)

    def _job(self, state: JobEvent) -> StreamEvent:
        return StreamEvent(self.at, "end" if state.status.finished else "job", state.attempt, state)


@dataclass(frozen=True, slots=True)
class FollowEvent:
    """What a program that follows a job is told of it. `name` is one of

    - "attempt": a run has begun; forget the chunks of the one before. `elsewhere`: it is on another host, or of another
      user, so that what it emits cannot be read here;
    - "job": the state or the progress has changed;
    - "chunk": the handler has emitted `chunk`, which is the `number`-th of its run, from 1;
    - "lost": the next `lost` chunks of the run are not there any more;
    - "end": the job has ended.

    `job` is the latest state of the job; at the end it has the result or the error.
    """

    name: str
    job: JobEvent
    attempt: int = 0
    number: int = 0
    chunk: Any = None
    lost: int = 0
    elsewhere: bool = False

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts: what the HTTP API sends with an event of this name."""
        if self.name == "chunk":
            return {"attempt": self.attempt, "number": self.number, "chunk": self.chunk}
        return _of_run(self) or self.job.as_json()


def _of_run(event: StreamEvent | FollowEvent) -> dict[str, Any] | None:
    """What tells of a run without its chunks."""
    if event.name == "attempt":
        return {"attempt": event.attempt, "elsewhere": event.elsewhere}
    return {"attempt": event.attempt, "chunks": event.lost} if event.name == "lost" else None


def follow_event(event: StreamEvent, state: JobEvent) -> FollowEvent:
    """An event for a program, with the latest state of the job."""
    number, value = 0, None
    if event.chunk is not None:  # decoded for each reader: one may change what it gets
        number, value = event.chunk.number, json.loads(event.chunk.data)
    return FollowEvent(event.name, state, event.attempt, number, value, event.lost, event.elsewhere)


def data_of(event: StreamEvent, *, show: bool) -> str:
    """The JSON of an event for who follows a job over HTTP. `show` says whether chunks and the result may be seen."""
    chunk = event.chunk
    if chunk is not None and show:  # as it was emitted; white space between its parts must not end the line
        value = chunk.data.translate(None, b"\r\n").decode()
        return f'{{"attempt": {chunk.attempt}, "number": {chunk.number}, "chunk": {value}}}'
    state = event.job
    if chunk is not None:
        about: dict[str, Any] = {"attempt": chunk.attempt, "number": chunk.number, "chunk": None, "redacted": True}
    elif event.name == "trouble":
        about = {"error": event.error}
    else:
        about = _of_run(event) or ({"status": "deleted"} if state is None else state.as_json())
    if state is not None and state.status.finished:
        about |= {"result": state.result if show else None, "redacted": not show}
    return json.dumps(json_safe(about), ensure_ascii=False, allow_nan=False)
