"""Why a worker ended, as text, and which run is charged for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.domain.recovery import Charge
from supervisor.domain.text import human, human_size, shortened
from supervisor.system.signals import name_of
from supervisor.system.slot import Phase, Snapshot, State

Run = tuple[int, int]
"""A job's id and the token of its claim, which identify one run."""

NO_RUN: Run = (0, 0)

# Why the supervisor itself killed a worker.
TIME_LIMIT = "time_limit"
CANCELLED = "cancelled"
STUCK = "stuck"
STOPPED = "stopped"
SHUTDOWN = "shutdown"
PARTITION = "partition"  # the supervisor could not renew its lease
STARTUP = "startup_timeout"
TEMPLATE = "template_died"
ALONE = "template_died_alone"  # its template died while only its job was running there
UNWATCHED = "unwatched"
TEARDOWN = "teardown"  # it took longer than shutdown_grace
HELD_DATABASE = "held_database"  # it left a transaction open
AFTER_INTERRUPT = "after_interrupt"  # it took longer than kill_grace
HELD_EARLIER = "held_database_earlier"  # a run before the current one left a transaction open, or may have

OUT_OF_MEMORY = "out_of_memory"  # killed by the kernel
RUINED = 71  # the exit code of a worker that found its own process damaged; its slot says how

_KILLS: dict[str, tuple[Charge, str]] = {
    TIME_LIMIT: ("attempt", "over its time limit of {limit}; the worker was killed"),
    CANCELLED: ("cancel", "cancelled, and killed because it did not stop"),
    STUCK: ("crash", "the worker was stuck: no heartbeat and no CPU used; it was killed"),
    STOPPED: ("crash", "the worker was stopped by a signal; it was killed"),
    SHUTDOWN: ("nothing", "the supervisor shut down before the job was done"),
    PARTITION: ("nothing", "the supervisor could not renew its lease, and on_partition is stop; the worker was killed"),
    STARTUP: ("nothing", "the worker was not set up within startup_timeout; it was killed"),
    TEMPLATE: ("nothing", "the template it was forked from died"),
    ALONE: ("crash", "the template it was forked from died again, while only this job was running"),
    UNWATCHED: ("nothing", "the supervisor cannot open more files, so the worker could not be watched"),
    TEARDOWN: ("nothing", "its teardown took longer than shutdown_grace; it was killed"),
    HELD_DATABASE: ("crash", "it held the database's write lock {when}: a transaction was not committed"),
    HELD_EARLIER: ("nothing", "an earlier run in the same worker, or this one, had left a database transaction open"),
    AFTER_INTERRUPT: ("nothing", "after_interrupt did not end within kill_grace; the worker was ended"),
    OUT_OF_MEMORY: ("crash", "the kernel killed the worker because it was out of memory"),
}
"""What is charged for each kill, and the sentence for people."""

_KINDS = {TIME_LIMIT: "timeout", ALONE: "crash"}  # of the failure, where it is not the reason
_NOT_ITS_SET_UP = (SHUTDOWN, PARTITION, TEMPLATE, ALONE, UNWATCHED)  # deaths that say nothing about the set-up
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LEFT_OPEN = (HELD_DATABASE, HELD_EARLIER)  # deaths caused by a run that has ended


class Kill(NamedTuple):
    """Why a worker was killed, and for which run. If another run was active when it died, no run is charged."""

    reason: str
    run: Run = NO_RUN


class Circumstances(NamedTuple):
    """What the supervisor knows about a death besides the slot. `status` is the wait status, None if unknown.

    `suspects` are jobs that had ended, but were not committed, at an earlier death; a `cautious` worker has one
    such job at most. `ran` is seconds. `out_of_memory` tells whether the kernel has just killed a process for
    lack of memory; it is called only for a kill with no other known cause. `unproven`: no worker of the pool has been
    ready in its template.
    """

    status: int | None
    kill: Kill | None = None
    tail: bytes = b""
    peak_memory: int | None = None
    out_of_memory: Callable[[], bool] = lambda: False
    timeout: float = 0.0
    ran: float | None = None
    cautious: bool = False
    suspects: frozenset[int] = frozenset()
    unproven: bool = False


@dataclass(frozen=True, slots=True)
class ExitReport:
    """`expected` ends are normal; `reason` is one word for logs, `message` a sentence for people.

    `run` is the run that was active, or one that is charged although it had ended; `batch` is its number of jobs.
    `uncommitted` is the number of ended runs whose outcomes are lost, the last of them `last_job`; a run that is not
    charged because another run may be the cause is included as the last. `early` says that nothing was ever
    committed, `broken` that the set-up failed: by an error, or because the process ended before it was ready; then
    `by_signal` says that it, or its template, was ended by a signal that anybody may have sent.
    """

    reason: str
    message: str
    charge: Charge
    run: Run = NO_RUN
    batch: int = 1
    uncommitted: int = 0
    last_job: int = 0
    early: bool = False
    expected: bool = False
    broken: bool = False
    by_signal: bool = False
    failure: dict[str, Any] = field(default_factory=dict)


def explain(slot: Snapshot, known: Circumstances) -> ExitReport:
    """Explain a death from the worker's last slot and what else is known."""
    if slot.state is State.BROKEN:
        return ExitReport("setup_failed", slot.text, "nothing", early=True, broken=True)
    if slot.state is State.LEFT and slot.job == 0 and slot.lost:
        # The worker has charged its job already.
        return ExitReport("program_died", slot.text, "nothing", early=_early(slot))
    if slot.state is State.LEFT and slot.job == 0:
        return ExitReport("left", "it left as requested", "nothing", expected=True)
    cause, message, kind, number, code = _cause(slot, known)
    if slot.state is State.STARTING and (cause not in _NOT_ITS_SET_UP or (cause == TEMPLATE and known.unproven)):
        return _set_up_ended(slot, cause, message, number)
    blame = _blame(slot, known, cause)
    message += blame.added
    return ExitReport(
        cause,
        message,
        blame.charge,
        blame.run,
        batch=blame.batch,
        uncommitted=blame.uncommitted,
        last_job=blame.last_job,
        early=_early(slot),
        expected=cause == SHUTDOWN,
        failure={
            "kind": kind,
            "message": message,
            "exit_code": code,
            "signal": None if number is None else name_of(number),
            "stderr": known.tail.decode("utf-8", "replace") or None,
            "peak_memory": known.peak_memory,
            "duration": known.ran,
        },
    )


class _Blame(NamedTuple):
    """The same fields as an ExitReport has, and what is added to its message."""

    charge: Charge
    run: Run
    batch: int
    uncommitted: int = 0
    last_job: int = 0
    added: str = ""


def _blame(slot: Snapshot, known: Circumstances, cause: str) -> _Blame:
    charge, _ = _KILLS.get(cause, ("crash", ""))
    run, accused = _run(slot, known, charge)
    added = "; its last job had just ended, and its outcome was not committed" if accused else ""
    if charge == "crash" and slot.places > 1 and slot.together > 1:  # it is not known which
        return _Blame(charge, (slot.last_job, slot.last_token) if run == NO_RUN else run, slot.together, added=added)
    batch = slot.together if slot.places == 1 else 1
    if known.kill is not None and cause == known.kill.reason and run != known.kill.run:
        charge = "nothing"  # the run it was meant for had ended in the meantime
    if charge == "crash" and slot.together <= 1 and _in_doubt(slot, known, cause):
        doubt = "; the first time does not count, because earlier jobs had left threads or processes behind"
        return _Blame("nothing", run, batch, max(slot.unsettled, 1), slot.job, doubt + added)
    blamed = slot.job == 0 and run != NO_RUN
    none_lost = blamed or (known.kill is not None and cause not in _LEFT_OPEN)
    return _Blame(charge, run, batch, 0 if none_lost else slot.unsettled, slot.last_job, added)


def _set_up_ended(slot: Snapshot, cause: str, message: str, number: int | None) -> ExitReport:
    """Whatever ended it before it was ready: its code cannot be used, as if it had raised an error."""
    if cause == STARTUP:
        return ExitReport(STARTUP, message, "nothing", early=True, broken=True)
    by_signal = cause in (STOPPED, TEMPLATE) or (cause == "signal" and number in _FROM_OUTSIDE)
    message = f"{slot.phase.label} failed: {message}"
    return ExitReport(
        cause if by_signal else "setup_failed", message, "nothing", early=True, broken=True, by_signal=by_signal
    )


def _in_doubt(slot: Snapshot, known: Circumstances, cause: str) -> bool:
    """Whether something that earlier jobs left behind may have ended the run. Not for a second death: what was left
    the first time ended with that worker.
    """
    sure = cause in (ALONE, HELD_DATABASE)
    return bool(slot.job) and slot.doubtful and not sure and slot.job not in known.suspects


def _early(slot: Snapshot) -> bool:
    """Whether it never committed anything. A batch that kills its worker is smaller next time, so such deaths end
    on their own.
    """
    return slot.done - slot.unsettled <= slot.lost and slot.together == 1


def _run(slot: Snapshot, known: Circumstances, charge: Charge) -> tuple[Run, bool]:
    """(the run concerned, whether it is charged although it had ended).

    A job can damage its process and return. Its worker then dies before it commits. The first time it is unknown
    which job caused it, if any; the second time it is the job that was again the last one.
    """
    if slot.job:
        return (slot.job, slot.token), False
    if known.kill is not None and known.kill.reason == HELD_DATABASE:
        # With several ended runs, it is unknown which one it was.
        return known.kill.run if slot.unsettled == 1 else NO_RUN, False
    guilty = slot.unsettled == 1 and (known.cautious or slot.last_job in known.suspects)
    if guilty and charge == "crash" and known.kill is None:
        return (slot.last_job, slot.last_token), True
    return NO_RUN, False


def _cause(slot: Snapshot, known: Circumstances) -> tuple[str, str, str, int | None, int | None]:
    """(reason, message, kind of failure, signal, exit code)."""
    status = known.status
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    killed_for = known.kill.reason if known.kill is not None else ""
    if number == signal.SIGKILL and not killed_for and known.out_of_memory():
        killed_for = OUT_OF_MEMORY
    if killed_for:
        when = "for longer than its time limit" if slot.job else "after its end"
        message = _KILLS[killed_for][1].format(limit=human(known.timeout), when=when)
        if killed_for == HELD_DATABASE and slot.places > 1 and slot.together > 1:
            message = f"one of its {slot.together} jobs left a database transaction open; it is not known which"
        if killed_for == OUT_OF_MEMORY and known.peak_memory:
            message += f"; it had used {human_size(known.peak_memory)} at its peak"
        return killed_for, message, _KINDS.get(killed_for, killed_for), number, code
    if number is not None:
        return "signal", f"the worker was killed by {name_of(number)}", "crash", number, code
    asked = slot.phase is Phase.AFTER_INTERRUPT and slot.state is not State.STARTING
    if code is not None and asked:
        return AFTER_INTERRUPT, _KILLS[AFTER_INTERRUPT][1], "crash", number, code
    if code == RUINED:
        return "ruined", shortened(slot.text) or "the worker's process was damaged", "crash", number, code
    if code is not None:
        when = "" if slot.state is State.STARTING else " in the middle of its work"
        message = f"the worker's process ended with exit code {code}{when}"
        return "exit", message, "crash", number, code
    return "unknown", "the worker died of an unknown cause", "crash", number, code
