"""`enqueue`: jobs from the command line or from standard input."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.errors import FAILED, Stop, wrong_usage
from supervisor.cli.options import (
    AsJson,
    JobType,
    Patience,
    Target,
    on_target,
    patience_of,
    warn_if_nobody_runs,
    warn_of_type,
)
from supervisor.cli.output import compact, document, line, note
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import MAX_DEPTH, MAX_PAYLOAD_BYTES, new_job
from supervisor.domain.text import human, refuse_constant

if TYPE_CHECKING:
    from supervisor.client import Queue
    from supervisor.domain.job import Job, NewJob

_STDIN = "-"
_LONGEST = 8 * MAX_PAYLOAD_BYTES  # a longer text cannot be a valid payload, even if much of it is white space
_ENDED = {"failed": "failed", "cancelled": "was cancelled", "quarantined": "was quarantined"}


@on_target
def enqueue(
    target: Target,
    type: JobType,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="[JSON]", help="The payload; - reads one from each line of standard input.", show_default=False
        ),
    ] = "{}",
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="From -100 to 100; higher runs first.")] = 0,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="The delay until the job is due, like 10s.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="The time when the job is due, like 2027-01-31T08:00+01:00."),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", metavar="N", help="Maximum number of attempts. Default: the pool's setting."),
    ] = None,
    requires: Annotated[
        str, typer.Option("--requires", metavar="A,B", help="Capabilities that the worker must have.")
    ] = "",
    unique_key: Annotated[
        str | None,
        typer.Option("--unique-key", metavar="KEY", help="A key that only one unfinished job of this type can have."),
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option(
            "--meta", metavar="JSON", help='A JSON object with your own data, like \'{"tags": ["nightly"]}\'.'
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job ends and print its result; exit code 1 if it failed.")
    ] = False,
    timeout: Patience = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job and print its id.

    With -, enqueue one job per line of standard input, all of them or none. Blank lines are skipped; without any
    other line, no job is enqueued. With --wait, also print the result; the exit code is 1 if a job did not succeed.
    """
    options: dict[str, Any] = {
        "priority": priority,
        "delay": delay,
        "at": None if at is None else moment(at),
        "requires": requires,
        "max_attempts": max_attempts,
        "unique_key": unique_key,
        "meta": None if meta is None else decoded(meta, "meta"),
    }
    patience = patience_of(wait, timeout)
    if payload == _STDIN and unique_key is not None:
        raise wrong_usage("--unique-key: many jobs cannot share one key")
    jobs = _jobs(type, payload, options)
    queue = _queue(target)
    asked = queue.url
    try:
        if unique_key is None:
            ids, is_new = queue.insert(jobs) if jobs else [], True
        else:
            job_id, is_new = queue.put(type, decoded(payload), **options)
            ids = [job_id]
        if not as_json:
            for job_id in ids:
                line(str(job_id))
            if not is_new:
                note(f"note: job {ids[0]} has this key and has not finished; no other job was enqueued")
        if queue.url != asked:  # the jobs were moved there
            target = Target(target.config, queue.url)
        if ids:
            warn_of_type(target, type)
        finished = _wait(target, queue, ids, patience, quiet=as_json) if wait else []
    finally:
        queue.close()
    if as_json:
        _document(ids, finished, is_new=is_new, many=payload == _STDIN, waited=wait)
    if any(job.status != "done" for job in finished):
        raise typer.Exit(FAILED)


def _jobs(type_: str, payload: str, options: dict[str, Any]) -> list[NewJob]:
    if payload != _STDIN:
        return [new_job(type_, decoded(payload), **options)]
    new_job(type_, **options)  # report invalid options before any line
    jobs = []
    for number, text in lines_of_stdin():
        try:
            jobs.append(new_job(type_, decoded(text), **options))
        except InvalidJob as error:
            raise wrong_usage(f"line {number}: {error}", "nothing was enqueued") from None
    return jobs


def _queue(target: Target) -> Queue:
    from supervisor.client import Queue

    # A URL on the command line may be mistyped: only a configured database is created on first use.
    url = target.engine(create=True).url
    return Queue(url, create=target.database is None, listen_database=target.listen_url())


def _wait(target: Target, queue: Queue, ids: list[int], patience: float | None, *, quiet: bool) -> list[Job]:
    from supervisor.domain.errors import WaitTimeout

    with target.operations() as operations:
        warn_if_nobody_runs(operations)
    deadline = None if patience is None else time.monotonic() + patience
    jobs = []
    for job_id in ids:
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            job = queue.wait(job_id, left)
        except WaitTimeout:
            message = f"job {job_id} has not finished within {human(patience or 0.0)}"
            raise Stop(message, hint=f"the job continues; see `supervisor jobs show {job_id}`") from None
        jobs.append(job)
        if not quiet:
            _print_result(job)
    return jobs


def _print_result(job: Job) -> None:
    if job.status == "done":
        line(compact(job.result))
        return
    note(
        f"error: job {job.id} {_ENDED.get(job.status, job.status)}" + (f": {job.last_error}" if job.last_error else "")
    )
    note(f"hint: supervisor jobs show {job.id}")


def _document(ids: list[int], finished: list[Job], *, is_new: bool, many: bool, waited: bool) -> None:
    if waited:
        jobs = [job.as_json() for job in finished]
        document({"jobs": jobs} if many else jobs[0])
    else:
        document({"ids": ids} if many else {"id": ids[0], "duplicate": not is_new})


# Payloads and times as written on a command line


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
