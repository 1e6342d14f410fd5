"""`logs`: what jobs print, live or as it was recorded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED
from supervisor.cli.options import JOB_ID, Target, as_json, flag, on_target, option
from supervisor.cli.output import document, heading, line, lines, note, rest, show
from supervisor.cli.tables import span, when
from supervisor.domain.job import Job, Status
from supervisor.domain.text import final_lines, shortened

if TYPE_CHECKING:
    from supervisor.ops.run_logs import LogReader, Part
    from supervisor.store.base import Operations

_EVERY = 0.1  # seconds between two looks
_NOTES_EVERY = 1.0  # seconds between two looks at why nothing is printed
_UNSEEN = "only the user of the workers sees what running jobs print; it is recorded when a run ends"
_LINES = 100  # without a job
_ERROR = 300  # characters of an error in one line


@on_target
@click.argument("job_id", metavar="[JOB]", type=JOB_ID, required=False)
@flag("--follow -f", "Print what is new until the job ends; without one, until Ctrl-C.")
@option(
    "--lines -n number",
    "Begin with the last N lines. Default: all; without a job, 100.",
    "N",
    type=click.IntRange(0, 100_000),
)
@as_json
def logs(target: Target, job_id: int | None, follow: bool, number: int | None, as_json: bool) -> None:
    """Show what jobs print.

    With a job, the logs and errors of its runs in order; with -f, the exit code is 1 if it does not succeed. Without
    one, the latest lines of all jobs. The events of the supervisor itself are where it writes them: under systemd, in
    the journal. --json prints one document, with -f one in each line.
    """
    from supervisor.ops.run_logs import MOST_RUNS, LogReader
    from supervisor.ops.serving import why_of

    with closing(target.engine().operations()) as operations:
        most = _LINES if number is None and job_id is None else number
        reader = LogReader(operations, job_id, MOST_RUNS if most is None else max(1, min(most, MOST_RUNS)))
        parts, job = reader.look(last=not follow)
        parts = _last(parts, most)
        if as_json and not follow:
            runs = [part._asdict() for part in parts]
            document({"job": job_id, "status": job and job.status, "runs": runs})
            return
        printer = Printer(alone=job_id is not None, as_json=as_json)
        printer.print(parts)
        if follow:
            _follow(operations, reader, printer, job)
        elif job is not None and not parts and most != 0:
            [now, *_] = why_of(operations, job)
            if now.code == "running":
                note(f"job {job.id}{now.text.partition(',')[0].removeprefix('it')} and has printed nothing so far")
            else:
                note(f"job {job.id} is {job.status}; nothing that it printed is known")
        if reader.unseen and not follow:
            note(f"note: {_UNSEEN}")


def _follow(operations: Operations, reader: LogReader, printer: Printer, job: Job | None) -> None:
    """Until the job has ended; without one, until the user or the reader of the output ends it."""
    from supervisor.ops.serving import PASSING, why_waiting

    known = {""}
    next_note = soon = time.monotonic()
    while job is None or not job.status.finished:
        if time.monotonic() >= next_note:
            next_note = time.monotonic() + _NOTES_EVERY
            waits = [] if job is None else why_waiting(operations, job)
            if time.monotonic() < soon + _NOTES_EVERY:  # many start at once
                waits = [each for each in waits if each.code not in PASSING]
            why, codes = "; ".join(map(str, waits)), " ".join(each.code for each in waits)
            news = {
                "too much was printed at once; some runs are left out" if reader.skipped else "",
                _UNSEEN if reader.unseen else "",
                f"job {job.id} waits: {why}" if job is not None and codes not in known else "",
            } - known
            known |= news | {codes}  # a text may say how long the reason has lasted
            for text in news:
                note(f"note: {text}")
        rest(_EVERY)
        parts, job = reader.look()
        printer.print(parts)
    if job.status is not Status.DONE:
        raise Exit(FAILED)


def _last(parts: list[Part], most: int | None) -> list[Part]:
    """The parts, with no more than that many lines in all."""
    if most is None:
        return parts
    kept: list[Part] = []
    for part in reversed(parts):
        if most <= 0:
            break
        most -= part.outcome not in (None, "done")  # which is a line of its own
        said = part.text.splitlines(keepends=True)[-most:] if most else []
        kept.append(part._replace(text="".join(said)))
        most -= len(said)
    return kept[::-1]


class Printer:
    """Prints parts: those of one job below a heading for each run, others with type and id before each line."""

    def __init__(self, *, alone: bool, as_json: bool) -> None:
        self._alone = alone
        self._as_json = as_json
        self._run = (0, 0)  # of which the heading was printed

    def print(self, parts: Iterable[Part]) -> None:
        for part in parts:
            ended = f"attempt {part.attempt} ended after {span(part.duration)}: {part.outcome}"
            if self._as_json:
                document(part._asdict(), indent=None)
            elif self._alone:
                self._below_heading(part, ended)
            else:
                said = final_lines(part.text).split("\n") if part.text else []
                if part.outcome not in (None, "done"):
                    said.append(ended + (f": {shortened(part.error, _ERROR)}" if part.error else ""))
                for text in said:
                    line(f"{part.type} {part.job} | {text}")

    def _below_heading(self, part: Part, ended: str) -> None:
        if (part.token, part.attempt) != self._run:
            where = f" in {part.worker}" if part.worker else ""
            show(heading(f"Attempt {part.attempt}, {when(part.started_at)}{where}").lstrip("\n"))
            self._run = (part.token, part.attempt)
        if part.text:
            lines(final_lines(part.text))
        if part.outcome is not None:
            line(ended)
            if part.error:
                lines((part.traceback or part.error).rstrip())
            if part.stderr:
                line("stderr:")
                lines(part.stderr.rstrip())
