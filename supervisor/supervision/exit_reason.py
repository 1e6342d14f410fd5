"""The end of a worker, decided in one place: what it died of, which run is charged, and what follows for its pool.

`explain` is a pure function of the worker's last slot and of what the supervisor knows besides. `_CAUSES` is the table
of what each cause means.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
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

# Other causes.
OUT_OF_MEMORY = "out_of_memory"  # killed by the kernel
SIGNAL, EXIT, UNKNOWN = "signal", "exit", "unknown"
RUINED = "ruined"
EXIT_RUINED = 71  # the exit code of a worker that found its own process damaged; its slot says how


class Effect(Enum):
    """What an end says about the pool's next worker."""

    EXPECTED = "it left as it was asked to"
    UNRELATED = "neither its code nor its jobs ended it"
    INTERRUPTED = "what it was doing was stopped, which the next worker need not fear"
    DIED = "it had worked before"
    DIED_EARLY = "it had never committed a job: a crash loop may begin"
    SET_UP_KILLED = "its set-up was ended by a signal that anybody may have sent"
    SET_UP_FAILED = "its code cannot be used: the pool backs off"


class _Cause(NamedTuple):
    """What follows from a cause of death: for its run, for the pool, and in words. `kind` is that of the failure, where
    it is not the cause.
    """

    charge: Charge
    effect: Effect
    message: str
    kind: str = ""


_CAUSES = {
    # Killed by the supervisor:
    TIME_LIMIT: _Cause("attempt", Effect.DIED, "over its time limit of {limit}; the worker was killed", "timeout"),
    CANCELLED: _Cause("cancel", Effect.INTERRUPTED, "cancelled, and killed because it did not stop"),
    STUCK: _Cause("crash", Effect.DIED, "the worker was stuck: no heartbeat and no CPU used; it was killed"),
    STOPPED: _Cause("crash", Effect.DIED, "the worker was stopped by a signal; it was killed"),
    SHUTDOWN: _Cause("nothing", Effect.EXPECTED, "the supervisor shut down before the job was done"),
    PARTITION: _Cause(
        "nothing",
        Effect.DIED,
        "the supervisor could not renew its lease, and on_partition is stop; the worker was killed",
    ),
    STARTUP: _Cause("nothing", Effect.DIED, "the worker was not set up within startup_timeout; it was killed"),
    TEMPLATE: _Cause("nothing", Effect.UNRELATED, "the template it was forked from died"),
    ALONE: _Cause(
        "crash",
        Effect.UNRELATED,
        "the template it was forked from died again, while only this job was running",
        "crash",
    ),
    UNWATCHED: _Cause(
        "nothing", Effect.UNRELATED, "the supervisor cannot open more files, so the worker could not be watched"
    ),
    TEARDOWN: _Cause("nothing", Effect.INTERRUPTED, "its teardown took longer than shutdown_grace; it was killed"),
    HELD_DATABASE: _Cause(
        "crash", Effect.DIED, "it held the database's write lock {when}: a transaction was not committed"
    ),
    HELD_EARLIER: _Cause(
        "nothing", Effect.DIED, "an earlier run in the same worker, or this one, had left a database transaction open"
    ),
    # It ended by itself, or somebody else killed it:
    OUT_OF_MEMORY: _Cause("crash", Effect.DIED, "the kernel killed the worker because it was out of memory"),
    AFTER_INTERRUPT: _Cause(
        "nothing", Effect.INTERRUPTED, "after_interrupt did not end within kill_grace; the worker was ended", "crash"
    ),
    SIGNAL: _Cause("crash", Effect.DIED, "the worker was killed by {signal}", "crash"),
    RUINED: _Cause("crash", Effect.DIED, "the worker's process was damaged", "crash"),
    EXIT: _Cause("crash", Effect.DIED, "the worker's process ended with exit code {code}{where}", "crash"),
    UNKNOWN: _Cause("crash", Effect.DIED, "the worker died of an unknown cause", "crash"),
}
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
    """`reason` is one word for logs, `message` a sentence for people, `effect` what it says about the next worker.

    `run` is the run that was active, or one that is charged although it had ended; `batch` is its number of jobs.
    `uncommitted` is the number of ended runs whose outcomes are lost, the last of them `last_job`; a run that is not
    charged because another run may be the cause is included as the last.
    """

    reason: str
    message: str
    charge: Charge
    effect: Effect
    run: Run = NO_RUN
    batch: int = 1
    uncommitted: int = 0
    last_job: int = 0
    failure: dict[str, Any] = field(default_factory=dict)

    @property
    def expected(self) -> bool:
        return self.effect is Effect.EXPECTED

    @property
    def suspect(self) -> int:
        """The job that may have caused it although it had ended, and that will run again; 0 for none."""
        accused = self.charge == "crash" and self.run[0] == self.last_job != 0
        died = self.effect in (Effect.INTERRUPTED, Effect.DIED, Effect.DIED_EARLY)
        return self.last_job if died and (self.uncommitted or accused) else 0


def explain(slot: Snapshot, known: Circumstances) -> ExitReport:
    """Explain a death from the worker's last slot and what else is known: its cause, who is charged, what follows."""
    if slot.state is State.BROKEN:
        return ExitReport("setup_failed", slot.text, "nothing", Effect.SET_UP_FAILED)
    if slot.state is State.LEFT and slot.job == 0 and slot.lost:
        # The worker has charged its job already.
        return ExitReport("program_died", slot.text, "nothing", _died(slot))
    if slot.state is State.LEFT and slot.job == 0:
        return ExitReport("left", "it left as requested", "nothing", Effect.EXPECTED)
    cause, number, code = _cause(slot, known)
    message = _message(cause, slot, known, number, code)
    if slot.state is State.STARTING and (cause not in _NOT_ITS_SET_UP or (cause == TEMPLATE and known.unproven)):
        return _set_up_ended(slot, cause, message, number)
    blame = _blame(slot, known, cause)
    message += blame.added
    rule = _CAUSES[cause]
    return ExitReport(
        cause,
        message,
        blame.charge,
        _died(slot) if rule.effect is Effect.DIED else rule.effect,
        blame.run,
        batch=blame.batch,
        uncommitted=blame.uncommitted,
        last_job=blame.last_job,
        failure={
            "kind": rule.kind or cause,
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
    charge = _CAUSES[cause].charge
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
        return ExitReport(STARTUP, message, "nothing", Effect.SET_UP_FAILED)
    message = f"{slot.phase.label} failed: {message}"
    if cause in (STOPPED, TEMPLATE) or (cause == SIGNAL and number in _FROM_OUTSIDE):
        return ExitReport(cause, message, "nothing", Effect.SET_UP_KILLED)
    return ExitReport("setup_failed", message, "nothing", Effect.SET_UP_FAILED)


def _in_doubt(slot: Snapshot, known: Circumstances, cause: str) -> bool:
    """Whether something that earlier jobs left behind may have ended the run. Not for a second death: what was left
    the first time ended with that worker.
    """
    sure = cause in (ALONE, HELD_DATABASE)
    return bool(slot.job) and slot.doubtful and not sure and slot.job not in known.suspects


def _died(slot: Snapshot) -> Effect:
    """Whether it ever committed anything. A batch that kills its worker is smaller next time, so such deaths end
    on their own.
    """
    early = slot.done - slot.unsettled <= slot.lost and slot.together == 1
    return Effect.DIED_EARLY if early else Effect.DIED


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


def _cause(slot: Snapshot, known: Circumstances) -> tuple[str, int | None, int | None]:
    """(cause, signal, exit code)."""
    status = known.status
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    if known.kill is not None:
        cause = known.kill.reason
    elif number is not None:
        cause = OUT_OF_MEMORY if number == signal.SIGKILL and known.out_of_memory() else SIGNAL
    elif code is None:
        cause = UNKNOWN
    elif slot.phase is Phase.AFTER_INTERRUPT and slot.state is not State.STARTING:
        cause = AFTER_INTERRUPT
    else:
        cause = RUINED if code == EXIT_RUINED else EXIT
    return cause, number, code


def _message(cause: str, slot: Snapshot, known: Circumstances, number: int | None, code: int | None) -> str:
    if cause == RUINED and slot.text:
        return shortened(slot.text)
    if cause == HELD_DATABASE and slot.places > 1 and slot.together > 1:
        return f"one of its {slot.together} jobs left a database transaction open; it is not known which"
    message = _CAUSES[cause].message.format(
        limit=human(known.timeout),
        when="for longer than its time limit" if slot.job else "after its end",
        signal="" if number is None else name_of(number),
        code=code,
        where="" if slot.state is State.STARTING else " in the middle of its work",
    )
    if cause == OUT_OF_MEMORY and known.peak_memory:
        message += f"; it had used {human_size(known.peak_memory)} at its peak"
    return message
