"""What somebody who follows a job is sent: its states, its attempts, and what the current one emits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.text import json_safe, refuse_constant
from supervisor.domain.values import encode

MAX_CHUNK_BYTES = 16 * 1024  # of JSON: many of them fit into the ring of a worker
_LAST_ID = re.compile(r"(\d{1,18})\.(\d{1,18})")


class Position(NamedTuple):
    """How far a stream is: the run, by its token, and the number of its last chunk that was sent."""

    token: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.token}.{self.number}"


_START = Position()


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


def position_of(last_id: str) -> Position | None:
    """The position that an event's id names; None if none does."""
    found = _LAST_ID.fullmatch(last_id)
    return Position(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class FollowEvent:
    """What somebody who follows a job is told of it. `name` is one of

    - "attempt": a run has begun; forget the chunks of the one before. `elsewhere`: it is on another host, or of another
      user, so that what it emits cannot be read here;
    - "job": the state or the progress has changed;
    - "chunk": the handler has emitted `chunk`, which is the `number`-th of its run, from 1;
    - "lost": the next `lost` chunks of the run are not there any more;
    - "end": the job has ended.

    `job` is the latest state of the job; at the end it has the result or the error. `at` is where a stream goes on that
    was cut off behind this event, `data` the JSON of a chunk.
    """

    name: str
    job: JobEvent
    attempt: int = 0
    number: int = 0
    lost: int = 0
    elsewhere: bool = False
    at: Position = _START
    data: bytes = b""

    @property
    def chunk(self) -> Any:
        """What the handler has emitted, if it is that."""
        return json.loads(self.data) if self.data else None

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` accepts: what the HTTP API sends with an event of this name."""
        match self.name:
            case "chunk":
                return {"attempt": self.attempt, "number": self.number, "chunk": self.chunk}
            case "attempt":
                return {"attempt": self.attempt, "elsewhere": self.elsewhere}
            case "lost":
                return {"attempt": self.attempt, "chunks": self.lost}
        return self.job.as_json()

    def as_sent(self, *, show: bool) -> str:
        """The JSON for who follows a job over HTTP. `show` says whether chunks and the result may be seen."""
        if self.name == "chunk":
            # As it was emitted; white space between its parts must not end the line.
            value = self.data.translate(None, b"\r\n").decode() if show else 'null, "redacted": true'
            return f'{{"attempt": {self.attempt}, "number": {self.number}, "chunk": {value}}}'
        about = self.as_json()
        if self.name == "end":
            about |= {"result": self.job.result if show else None, "redacted": not show}
        return json.dumps(json_safe(about), ensure_ascii=False, allow_nan=False)


class Follower:
    """One stream of a job's events."""

    def __init__(self, at: Position | None = None) -> None:
        self.at = at or _START
        self.state: JobEvent | None = None
        self._open = True  # the run at `at` may go on; one that has ended says nothing more

    @property
    def ended(self) -> bool:
        return self.state is not None and self.state.status.finished

    def news(self, state: JobEvent, chunks: Iterable[Chunk], *, elsewhere: bool = False) -> list[FollowEvent]:
        """What is new. `chunks` are those behind `at`, in order. `elsewhere`: those of this run are not here."""
        there = [*chunks]
        before, self.state = self.state, state
        found = self._sent(state, there)  # of a run that was there before
        # A job that has ended need not have had a run.
        ended = state.status.finished and any(chunk.token == state.token for chunk in there)
        if state.token != self.at.token and (ended or state.status is Status.RUNNING):
            self.at, self._open = Position(state.token), True
            found.append(self._event("attempt", state, state.attempt, elsewhere=elsewhere))
        if state != before and state.status is Status.RUNNING:
            found.append(self._event("job", state, state.attempt))
        found += self._sent(state, there)
        self._open = state.status is Status.RUNNING
        if state != before and not self._open:
            found.append(self._event("end" if state.status.finished else "job", state, state.attempt))
        return found

    def _sent(self, state: JobEvent, chunks: Iterable[Chunk]) -> list[FollowEvent]:
        """The chunks of the current run that were not sent yet, and how many are missing before each."""
        found = []
        for chunk in chunks:
            if not self._open or chunk.token != self.at.token or chunk.number <= self.at.number:
                continue
            if missing := chunk.number - self.at.number - 1:
                self.at = Position(self.at.token, chunk.number - 1)
                found.append(self._event("lost", state, chunk.attempt, lost=missing))
            self.at = chunk.at
            found.append(self._event("chunk", state, chunk.attempt, number=chunk.number, data=chunk.data))
        return found

    def _event(self, name: str, state: JobEvent, attempt: int, **more: Any) -> FollowEvent:
        return FollowEvent(name, state, attempt, at=self.at, **more)
