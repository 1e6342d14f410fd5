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
from supervisor.domain.text import json_safe

MAX_CHUNK_BYTES = 16 * 1024  # of JSON: many of them fit into the ring of a worker


class Chunk(NamedTuple):
    """One piece, as a worker has written it. `number` counts the chunks of its run from 1; `data` is JSON."""

    job: int
    token: int
    attempt: int
    number: int
    data: bytes


def encoded_chunk(value: object) -> bytes:
    """The JSON of a chunk. Raises InvalidJob for what JSON cannot represent, or is too large."""
    data = encode("chunk", value).encode()
    if len(data) > MAX_CHUNK_BYTES:
        raise InvalidJob("chunk", f"it has {len(data)} bytes of JSON; the limit is {MAX_CHUNK_BYTES} (16 KiB)")
    return data


def chunk_text(chunk: Chunk) -> str | None:
    """A chunk as its readers get it; None if it is not JSON."""
    try:
        return json_line({"attempt": chunk.attempt, "number": chunk.number, "chunk": json_safe(json.loads(chunk.data))})
    except (ValueError, RecursionError):
        return None


def json_line(value: object) -> str:
    """A value as one line of JSON."""
    return json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)


# What somebody who follows a job is sent: its states, its attempts, and what the current one emits.
#
# Pure: the state and the chunks that are there go in, events come out. A chunk is sent only while its run is the latest
# of the job, so a run that has lost its claim reaches nobody.

_LAST_ID = re.compile(r"(\d{1,18})\.(\d{1,18})")


class Position(NamedTuple):
    """How far a stream is: the run, by its token, and the number of its last chunk that was sent."""

    token: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.token}.{self.number}"


class Piece(NamedTuple):
    """A chunk that is there. `chunk` is its JSON, or that of the whole event, which is ready to be sent."""

    at: Position
    attempt: int
    chunk: Any


class StreamEvent(NamedTuple):
    """`at` is where a stream goes on that was cut off behind this event.

    With the names "job" and "end" comes the state, `job`; None at the end of a job that was deleted. With "attempt", a
    run has begun; `elsewhere`: what it emits cannot be read here. With "chunk" comes a piece, with "lost" the number of
    chunks that are missing before the next one, with "trouble" an error.
    """

    at: Position
    name: str
    attempt: int = 0
    job: JobEvent | None = None
    piece: Piece | None = None
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

    def news(self, state: JobEvent, pieces: Iterable[Piece], *, elsewhere: bool = False) -> list[StreamEvent]:
        """What is new. `pieces` are the chunks behind `at`, in order. `elsewhere`: those of this run are not here."""
        there = [*pieces]
        changed = state != self._state or self._trouble is not None
        self._state, self._trouble = state, None
        self.ended = state.status.finished
        found = self._sent(there)  # of a run that was there before
        if state.token != self.at.token and self._has_begun(state, there):
            found.append(self._attempt(state, elsewhere))
        now = [self._job(state)] if changed and state.status is Status.RUNNING else []
        found += now + self._sent(there)
        self._open = state.status is Status.RUNNING
        return found if now or not changed else [*found, self._job(state)]

    def _has_begun(self, state: JobEvent, pieces: Iterable[Piece]) -> bool:
        """Whether the run of this state is to be announced. A job that has ended need not have had one."""
        if state.status is Status.RUNNING:
            return True
        return state.status.finished and any(piece.at.token == state.token for piece in pieces)

    def _sent(self, pieces: Iterable[Piece]) -> list[StreamEvent]:
        """The chunks of the current run that were not sent yet, and how many are missing before each."""
        found = []
        for piece in pieces:
            if not self._open or piece.at.token != self.at.token or piece.at.number <= self.at.number:
                continue
            if missing := piece.at.number - self.at.number - 1:
                self.at = Position(self.at.token, piece.at.number - 1)
                found.append(StreamEvent(self.at, "lost", piece.attempt, lost=missing))
            self.at = piece.at
            found.append(StreamEvent(self.at, "chunk", piece.attempt, piece=piece))
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
        match self.name:
            case "attempt":
                return {"attempt": self.attempt, "elsewhere": self.elsewhere}
            case "chunk":
                return {"attempt": self.attempt, "number": self.number, "chunk": self.chunk}
            case "lost":
                return {"attempt": self.attempt, "chunks": self.lost}
        return self.job.as_json()


def follow_event(event: StreamEvent, state: JobEvent) -> FollowEvent:
    """An event for a program, whose pieces are `raw_piece`s, with the latest state of the job."""
    number, chunk = 0, None
    if event.piece is not None:  # decoded for each reader: one may change what it gets
        number, chunk = event.piece.at.number, json.loads(event.piece.chunk)
    return FollowEvent(event.name, state, event.attempt, number, chunk, event.lost, event.elsewhere)


def raw_piece(chunk: Chunk) -> Piece | None:
    """A chunk for programs, as the JSON that was emitted; None if it is none."""
    try:
        json.loads(chunk.data)
    except (ValueError, RecursionError):
        return None
    return Piece(Position(chunk.token, chunk.number), chunk.attempt, chunk.data)


def text_piece(chunk: Chunk) -> Piece | None:
    """A chunk as JSON that is ready to be sent; None if it is none."""
    text = chunk_text(chunk)
    return None if text is None else Piece(Position(chunk.token, chunk.number), chunk.attempt, text)


def data_of(event: StreamEvent, *, show: bool) -> str:
    """The JSON of an event for who follows a job over HTTP. `show` says whether chunks and the result may be seen."""
    if event.piece is not None:
        text: str = event.piece.chunk
        return text if show else _hidden(event.piece)
    return json_line(_data(event, show))


def _hidden(piece: Piece) -> str:
    return json_line({"attempt": piece.attempt, "number": piece.at.number, "chunk": None, "redacted": True})


def _data(event: StreamEvent, show: bool) -> dict[str, Any]:
    match event.name:
        case "attempt":
            return {"attempt": event.attempt, "elsewhere": event.elsewhere}
        case "lost":
            return {"attempt": event.attempt, "chunks": event.lost}
        case "trouble":
            return {"error": event.error}
    state = event.job
    if state is None:
        return {"status": "deleted"}
    about = state.as_json()
    if not state.status.finished:
        return about
    return about | {"result": state.result if show else None, "redacted": not show}
