"""`enqueue`: jobs from the command line or from standard input."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from supervisor.cli.errors import FAILED, Stop, wrong_usage
from supervisor.cli.options import (
    JOB_ID,
    Function,
    Parsed,
    Target,
    as_json,
    check_patience,
    flag,
    on_target,
    option,
    patience,
)
from supervisor.cli.output import compact, document, line, note
from supervisor.domain import values
from supervisor.domain.enqueueing import OPTIONS, new_job
from supervisor.domain.errors import InvalidJob
from supervisor.domain.text import human, refuse_constant
from supervisor.domain.values import MAX_DEPTH, MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from supervisor.client import Queue
    from supervisor.domain.job import Job, NewJob

_LONGEST = 8 * MAX_PAYLOAD_BYTES  # a longer text cannot be a valid payload, even if much of it is white space

# How options of an enqueue are written, by their checks.
_FORMS: dict[Any, tuple[str, Any]] = {
    values.whole: ("N", int),
    values.word: ("WORD", str),
    values.job_ids: ("ID,ID", Parsed(lambda text: [JOB_ID.parse(each) for each in text.split(",")])),
    values.delay_of: ("DURATION", str),
    values.moment: ("TIME", Parsed(values.time_of)),
    values.capabilities: ("A,B", Parsed(lambda text: text.replace(",", " ").split())),
    values.text_key: ("KEY", str),
    values.json_object: ("JSON", Parsed(lambda text: decoded(text))),
}

_REPEATED = (values.job_ids, values.capabilities)  # lists, which may be given in parts


def _options_of_jobs(function: Function) -> Function:
    for name, each in reversed(list(OPTIONS.items())):
        metavar, kind = _FORMS[each.check]
        many = each.check in _REPEATED
        function = option(f"--{name.replace('_', '-')}", each.text, metavar, type=kind, multiple=many)(function)
    return function


@on_target
@click.argument("type")
@click.argument("payload", metavar="[JSON]", default="{}")
@_options_of_jobs
@flag("--wait", "Wait until the job ends and print its result; exit code 1 if it failed.")
@patience
@as_json
def enqueue(
    target: Target, type: str, payload: str, wait: bool, timeout: float | None, as_json: bool, **options: Any
) -> None:
    """Enqueue a job and print its id.

    The payload is an empty object unless it is given. With -, enqueue one job per line of standard input, all of them
    or none. Blank lines are skipped; without any other line, no job is enqueued. With --wait, also print the result;
    the exit code is 1 if a job did not succeed.
    """
    from supervisor.client import Queue

    options = {
        name: list(chain(*value)) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value not in (None, ())
    }
    check_patience(wait, timeout)
    many = payload == "-"
    if many and "unique_key" in options:
        raise wrong_usage("--unique-key: many jobs cannot share one key")
    value = None if many else decoded(payload)
    new_job(type, value, **options)  # mistakes are told before anything is read or opened
    jobs = _jobs_of_stdin(type, options) if many else []
    # A URL on the command line may be mistyped: only a configured database is created on first use.
    asked = target.engine(create=True).url
    with closing(Queue(asked, create=target.database is None, listen_database=target.listen_url())) as queue:
        if many:
            ids, is_new = queue.insert(jobs) if jobs else [], True
        else:
            job_id, is_new = queue.put(type, value, **options)
            ids = [job_id]
        if not as_json:
            for job_id in ids:
                line(str(job_id))
            if not is_new:
                note(f"note: job {ids[0]} has this key; no other job was enqueued")
        if queue.url != asked:  # the jobs were moved there
            target = Target(target.config, queue.url)
        if ids:
            warn_of_type(target, type)
        finished = _wait(target, queue, ids, timeout, quiet=as_json) if wait else []
    if as_json:
        ended = [job.as_json() for job in finished]
        one = ended[0] if ended else {"id": ids[0], "duplicate": not is_new} if ids else None
        document(({"jobs": ended} if wait else {"ids": ids}) if many else one)
    if any(job.status != "done" for job in finished):
        raise Exit(FAILED)


def _jobs_of_stdin(type_: str, options: dict[str, Any]) -> list[NewJob]:
    """A job for each line that is not empty. Raises Stop."""
    jobs: list[NewJob] = []
    for number, raw in enumerate(iter(lambda: sys.stdin.buffer.readline(_LONGEST), b"") if sys.stdin else (), 1):
        try:
            if len(raw) == _LONGEST:
                raise InvalidJob("payload", f"it is over {_LONGEST >> 20} MiB")
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text:
                jobs.append(new_job(type_, decoded(text), **options))
        except (InvalidJob, UnicodeDecodeError) as error:
            why = error if isinstance(error, InvalidJob) else "payload: it is not UTF-8 text"
            raise wrong_usage(f"line {number}: {why}", "nothing was enqueued") from None
    return jobs


def warn_of_type(target: Target, type_: str) -> None:
    """Warn about a type that no pool takes: a mistyped one would never run. Needs a configuration."""
    if (known := target.types()) and type_ not in known:
        from supervisor.ops.serving import why_untaken

        with target.operations() as operations:
            if why := why_untaken(operations, type_, known):
                note(f"warning: {why}")


def _wait(target: Target, queue: Queue, ids: list[int], patience: float | None, *, quiet: bool) -> list[Job]:
    from supervisor.domain.errors import WaitTimeout
    from supervisor.ops.diagnosis import no_supervisor
    from supervisor.ops.supervisors import living

    with target.operations() as operations:
        if not living(operations):
            nobody = no_supervisor()
            note(f"note: {nobody.fact}; {nobody.advice}")
    deadline = None if patience is None else time.monotonic() + patience
    jobs = []
    for job_id in ids:
        try:
            job = queue.wait(job_id, None if deadline is None else max(0.0, deadline - time.monotonic()))
        except WaitTimeout:
            message = f"job {job_id} has not finished within {human(patience or 0.0)}"
            raise Stop(message, hint=f"the job continues; see `supervisor jobs why {job_id}`") from None
        jobs.append(job)
        if not quiet and job.status == "done":
            line(compact(job.result))
        elif not quiet:
            why = f": {job.last_error}" if job.last_error else ""
            note(f"error: job {job.id} {'failed' if job.status == 'failed' else f'was {job.status}'}{why}")
            note(f"hint: supervisor jobs show {job.id}")
    return jobs


def decoded(text: str) -> Any:
    """The value of a JSON text. Raises InvalidJob for the payload."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        why = f"it is nested deeper than {MAX_DEPTH} levels"
    except ValueError as error:
        why = f"it is not valid JSON: {error}"
    raise InvalidJob("payload", why)
