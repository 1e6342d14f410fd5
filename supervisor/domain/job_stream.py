"""What somebody who follows a job is sent: its states, its attempts, and what the current one emits.

Pure: the state and the chunks that are there go in, events come out. A chunk is sent only while its run is the latest
of the job, so a run that has lost its claim reaches nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from supervisor.domain.chunks import dumped
from supervisor.domain.job import JobEvent, Status

_LAST_ID = re.compile(r"(\d{1,18})\.(\d{1,18})")


class Position(NamedTuple):
    """How far a stream is: the run, by its token, and the number of its last chunk that was sent."""

    token: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.token}.{self.number}"


class Piece(NamedTuple):
    """A chunk that is there, as JSON that is ready to be sent."""

    at: Position
    attempt: int
    text: str


class StreamEvent(NamedTuple):
    """`at` is where a stream goes on that was cut off behind this event; `data` is JSON."""

    at: Position
    name: str
    data: str


def position_of(last_id: str) -> Position | None:
    """The position that an event's id names; None if none does."""
    found = _LAST_ID.fullmatch(last_id)
    return Position(int(found[1]), int(found[2])) if found else None


class Follower:
    """One stream of a job's events. `show` says whether results and chunks may be seen."""

    def __init__(self, at: Position | None = None, *, show: bool) -> None:
        self.at = at or Position()
        self.ended = False
        self._show = show
        self._open = True  # the run at `at` may go on; one that has ended says nothing more
        self._state: JobEvent | None = None
        self._trouble: str | None = None

    def trouble(self, error: str) -> list[StreamEvent]:
        """The database cannot be used for now."""
        if error == self._trouble:
            return []
        self._trouble = error
        return [self._event("trouble", {"error": error})]

    def deleted(self) -> list[StreamEvent]:
        self.ended = True
        return [self._event("end", {"status": "deleted"})]

    def news(self, state: JobEvent, pieces: Iterable[Piece]) -> list[StreamEvent]:
        """What is new. `pieces` are the chunks behind `at`, in order."""
        there = [*pieces]
        changed = state != self._state or self._trouble is not None
        self._state, self._trouble = state, None
        self.ended = state.status.finished
        found = self._sent(there)  # of a run that was there before
        if state.token != self.at.token and self._has_begun(state, there):
            found.append(self._attempt(state))
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
                found.append(self._event("lost", {"attempt": piece.attempt, "chunks": missing}))
            self.at = piece.at
            found.append(StreamEvent(self.at, "chunk", piece.text))
        return found

    def _attempt(self, state: JobEvent) -> StreamEvent:
        self.at, self._open = Position(state.token), True
        return self._event("attempt", {"attempt": state.attempt})

    def _job(self, state: JobEvent) -> StreamEvent:
        about: dict[str, Any] = {
            "id": state.job_id,
            "status": state.status,
            "attempt": state.attempt,
            "progress": state.progress,
            "progress_text": state.text,
        }
        if not state.status.finished:
            return self._event("job", about)
        result = state.result if self._show else None
        return self._event("end", about | {"result": result, "redacted": not self._show, "error": state.error})

    def _event(self, name: str, data: object) -> StreamEvent:
        return StreamEvent(self.at, name, dumped(data))
