"""What runs print: from the memory of the workers while they run, from the database afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.errors import JobNotFound
from supervisor.domain.job import Attempt, Job, Run, Status, shown
from supervisor.ops.job_details import Trial, trial_of, trials
from supervisor.ops.supervisors import registered
from supervisor.store.base import Operations
from supervisor.system import run_log
from supervisor.system.scoreboard import run_logs_of
from supervisor.system.slot import PRESENT, Snapshot

MOST_RUNS = 200  # runs of all jobs that are read at once
_LONGEST = 8192  # bytes of a line that are kept back until it ends


class Part(NamedTuple):
    """What is new of a run: what it printed, in whole lines, and how it ended, if it has. Times are Unix seconds."""

    job: int
    type: str
    token: int
    attempt: int
    worker: str | None
    started_at: float | None
    text: str = ""
    outcome: str | None = None
    duration: float | None = None
    error: str | None = None
    traceback: str | None = None
    stderr: str | None = None


def part_of(job: int, type_: str, trial: Trial) -> Part:
    """A run that has ended."""
    run, error = trial.run, trial.error
    token, began, text = (0, trial.began, "") if run is None else (run.token, run.started_at, run.log or "")
    failure = () if error is None else (error.message, error.traceback, error.stderr)
    ended = (trial.outcome, trial.duration, *failure)
    return Part(job, type_, token, trial.attempt, trial.worker, began, text, *ended)


@dataclass(slots=True)
class _Live:
    """How much of a run was reported; `pending` is the beginning of a line."""

    part: Part
    end: int = 0
    pending: bytes = b""

    @property
    def reported(self) -> int:
        return self.end - len(self.pending)


class LogReader:
    """Reports what runs print and how they end: of one job, or the latest runs of all. Each `look` has what is new.

    Some output may be `unseen` until its run ends: that of another user's workers.
    """

    def __init__(self, operations: Operations, job: int | None = None, runs: int = MOST_RUNS) -> None:
        self._operations = operations
        self._job = job
        self._runs = runs
        self._after: int | None = None  # the latest run that was reported: its token, or its number
        self._live: dict[tuple[int, int], _Live] = {}
        self.unseen = False
        self.skipped = False  # there were more runs than are read at once

    def look(self, *, last: bool = False) -> tuple[list[Part], Job | None]:
        """What is new, in order, and the job as it was before. Raises JobNotFound. With `last`, lines that have not
        ended are reported too.
        """
        job = None
        if self._job is not None:
            job = self._operations.jobs.get(self._job)
            if job is None:
                raise JobNotFound(self._job)
        # Runs that end while we look are found as ended the next time.
        found = [] if job is not None and job.status.finished else list(registered(self._operations))
        self.unseen = self.unseen or any(board is None and alive is not False for _, alive, board in found)
        going_on = [
            (slot, run_logs_of(board.path), number)
            for _, _, board in found
            if board is not None
            for number in range(1, board.highest + 1)
            if (slot := board.slot(number).read()).job and slot.state in PRESENT and self._job in (None, slot.job)
        ]
        parts = [*(self._ended() if job is None else self._ended_of(job))]
        for slot, file, number in going_on:
            parts += self._printed(slot, file, number, last)
        kept = {(slot.job, slot.token) for slot, _, _ in going_on}  # another is recorded later, or was short and silent
        self._live = {key: live for key, live in self._live.items() if key in kept or live.end}
        return parts, job

    def _ended_of(self, job: Job) -> Iterator[Part]:
        runs = self._operations.jobs.runs(job.id)
        errors = self._operations.jobs.attempts(job.id)
        known, self._after = self._after or 0, max([self._after or 0, *(run.token for run in runs)])
        for trial in reversed(trials(runs, errors)):
            if trial.run is not None and trial.run.token > known:
                yield self._whole(trial.run, job.type, trial.error)

    def _ended(self) -> Iterator[Part]:
        first = self._after is None
        found = self._operations.jobs.latest_runs(self._after, self._runs if first else MOST_RUNS)
        self.skipped = self.skipped or (not first and len(found) == MOST_RUNS)
        self._after = found[-1].number if found else (self._after or 0)
        for recorded in found:
            part = self._whole(recorded.run, recorded.type, None)
            if part.text or part.outcome != "done":
                failed = part.outcome not in ("done", "released", "cancelled")
                yield part._replace(error=shown(recorded.error) or None if failed else None)

    def _whole(self, run: Run, type_: str, error: Attempt | None) -> Part:
        """A run that has ended, without what was reported of it."""
        live = self._live.pop((run.job_id, run.token), None)
        part = part_of(run.job_id, type_, trial_of(run, error))
        return part if live is None else part._replace(text=run_log.behind(part.text, live.reported))

    def _printed(self, slot: Snapshot, file: Path, number: int, last: bool) -> list[Part]:
        """What is new of a run that goes on, in that slot of a scoreboard with this file of output."""
        live = self._live.get((slot.job, slot.token))
        if live is None:
            job = self._operations.jobs.get(slot.job)
            if job is None or job.status is not Status.RUNNING or job.claim_token != slot.token:
                return []
            part = Part(slot.job, job.type, slot.token, max(1, job.attempts), slot.name, job.started_at)
            live = self._live[slot.job, slot.token] = _Live(part)
        try:
            data, live.end = run_log.printed(file, number, slot.job, slot.token, live.end)
        except FileNotFoundError:
            data = b""
        except OSError:
            self.unseen = True
            return []
        data = live.pending + data
        cut = len(data) if last or len(data) > _LONGEST else 0
        cut = max(cut, data.rfind(b"\n") + 1)
        live.pending = data[cut:]
        return [live.part._replace(text=data[:cut].decode("utf-8", "replace"))] if cut else []
