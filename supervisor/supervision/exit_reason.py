"""The ends of workers and templates, decided in one place: the cause, which run is charged, and what follows.

`explain` is a pure function of a worker's last slot and of what the supervisor knows besides. `Cause` is the table
of what each cause of death means.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from supervisor.domain.job import RunKey
from supervisor.domain.recovery import Charge
from supervisor.domain.text import human, human_size, shortened
from supervisor.system.signals import name_of
from supervisor.system.slot import Phase, Snapshot, State
from supervisor.worker.fitness import EXIT_RUINED

NO_RUN: RunKey = (0, 0)

_MOST_SUSPECTS = 64  # that are remembered


class Effect(Enum):
    """What an end says about the pool's next worker."""

    EXPECTED = "it left as it was asked to"
    UNRELATED = "neither its code nor its jobs ended it"
    INTERRUPTED = "what it was doing was stopped, which the next worker need not fear"
    DIED = "it had worked before"
    DIED_EARLY = "it had never committed a job: a crash loop may begin"
    SET_UP_FAILED = "its code cannot be used: the pool backs off"


class Cause(Enum):
    """What a worker dies of, as one word, and what follows from it: for its run, for the pool, and in words."""

    # Killed by the supervisor:
    TIME_LIMIT = "time_limit", "attempt", Effect.DIED, "over its time limit of {limit}; the worker was killed"
    CANCELLED = "cancelled", "cancel", Effect.INTERRUPTED, "cancelled, and killed because it did not stop"
    SILENT = (  # beside others: nobody but the run that holds the interpreter's lock could end or be interrupted
        "silent",
        "crash",
        Effect.DIED,
        "a run was over its time limit, and no thread of the worker could run: one of its {together} jobs holds the "
        "interpreter's lock, it is not known which; the worker was killed",
    )
    STUCK = "stuck", "crash", Effect.DIED, "the worker was stuck: no heartbeat and no CPU used; it was killed"
    STOPPED = "stopped", "crash", Effect.DIED, "the worker was stopped by a signal; it was killed"
    SHUTDOWN = "shutdown", "nothing", Effect.EXPECTED, "the supervisor shut down before the job was done"
    PARTITION = "partition", "nothing", Effect.DIED, "the lease could not be renewed, and on_partition is stop"
    STARTUP = "startup_timeout", "nothing", Effect.DIED, "the worker was not set up within startup_timeout"
    TEMPLATE = "template_died", "nothing", Effect.UNRELATED, "the template it was forked from died"
    ALONE = "template_died_alone", "crash", Effect.UNRELATED, "the template died again while only this job was running"
    UNSTARTED = "unstarted", "nothing", Effect.UNRELATED, "it could not be started"
    TEARDOWN = "teardown", "nothing", Effect.INTERRUPTED, "its teardown took longer than shutdown_grace; it was killed"
    HELD_DATABASE = "held_database", "crash", Effect.DIED, "a database transaction was left open; the worker was killed"
    # It ended by itself, or somebody else killed it:
    OUT_OF_MEMORY = "out_of_memory", "crash", Effect.DIED, "the kernel killed the worker because it was out of memory"
    AFTER_INTERRUPT = "after_interrupt", "nothing", Effect.INTERRUPTED, "after_interrupt did not end within kill_grace"
    SIGNAL = "signal", "crash", Effect.DIED, "the worker was killed by {signal}"
    RUINED = "ruined", "crash", Effect.DIED, "the worker's process was damaged"
    EXIT = "exit", "crash", Effect.DIED, "the worker's process ended with exit code {code}{where}"
    UNKNOWN = "unknown", "crash", Effect.DIED, "the worker died of an unknown cause"

    def __init__(self, word: str, charge: Charge, effect: Effect, message: str) -> None:
        self.word = word
        self.charge: Charge = charge
        self.effect = effect
        self.message = message

    @property
    def kind(self) -> str:
        """The kind of the failure."""
        by_itself = (Cause.ALONE, Cause.AFTER_INTERRUPT, Cause.SIGNAL, Cause.RUINED, Cause.EXIT, Cause.UNKNOWN)
        return "timeout" if self is Cause.TIME_LIMIT else "crash" if self in by_itself else self.word


_NOT_ITS_SET_UP = (Cause.SHUTDOWN, Cause.PARTITION, Cause.TEMPLATE, Cause.ALONE, Cause.UNSTARTED)


class Kill(NamedTuple):
    """Why a worker was killed, and for which run. If another run was active when it died, no run is charged."""

    reason: Cause
    run: RunKey = NO_RUN


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
    run: RunKey = NO_RUN
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


@dataclass(slots=True)
class DeathRecord:
    """What a pool remembers of the ends of its workers. Each release has a back-off of its own.

    If a worker dies after jobs had ended and before their outcomes were committed, one of them may have caused that. No
    job is charged the first time; the last to end is a suspect. The worker that replaces the dead one is cautious: it
    commits after each job, so that the next such death shows which job it was.
    """

    suspects: tuple[int, ...] = ()
    cautious_due: list[int] = field(default_factory=list)  # outcomes that were lost, for each cautious one
    count: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers that are replaced, by reason

    def ended(self, end: ExitReport, caution: int, stale: str) -> None:
        """A worker has ended that was so cautious, and was to be replaced if this says why."""
        self.count += end.effect in (Effect.INTERRUPTED, Effect.DIED, Effect.DIED_EARLY)
        if end.suspect:
            self.suspects = (*(job for job in self.suspects if job != end.suspect), end.suspect)[-_MOST_SUSPECTS:]
            caution = max(end.uncommitted, caution, 1)
        if not end.expected:
            self.restarted[end.reason] += 1
            if caution:
                self.cautious_due.append(caution)
        elif stale and end.reason != Cause.SHUTDOWN.word:
            self.restarted[stale] += 1

    def next_caution(self) -> int:
        """The `caution` of the next worker."""
        return self.cautious_due.pop() if self.cautious_due else 0


def explain(slot: Snapshot, known: Circumstances) -> ExitReport:
    """Explain a death from the worker's last slot and what else is known: its cause, who is charged, what follows."""
    if slot.state is State.BROKEN:
        return ExitReport("setup_failed", slot.text, "nothing", Effect.SET_UP_FAILED)
    if slot.state is State.LEFT and slot.job == 0:
        if slot.lost:  # the worker has charged its job already
            return ExitReport("program_died", slot.text, "nothing", _died(slot))
        return ExitReport("left", "it left as requested", "nothing", Effect.EXPECTED)
    cause, number, code = _cause(slot, known)
    message = _message(cause, slot, known, number, code)
    if slot.state is State.STARTING and (cause not in _NOT_ITS_SET_UP or (cause is Cause.TEMPLATE and known.unproven)):
        # Whatever ended it before it was ready: its code cannot be used, as if it had raised an error.
        word = "setup_failed" if known.kill is None else cause.word
        return ExitReport(word, f"{slot.phase.label} failed: {message}", "nothing", Effect.SET_UP_FAILED)
    effect = _died(slot) if cause.effect is Effect.DIED else cause.effect
    report = _charged(ExitReport(cause.word, message, cause.charge, effect), cause, slot, known)
    failure = {
        "kind": cause.kind,
        "message": report.message,
        "exit_code": code,
        "signal": None if number is None else name_of(number),
        "stderr": known.tail.decode("utf-8", "replace") or None,
        "peak_memory": known.peak_memory,
        "duration": known.ran,
    }
    return replace(report, failure=failure)


def accused_of(workers: Sequence[Snapshot], *, wanted: bool, isolated: bool, unproven: bool) -> int | None:
    """The job that is charged for the end of a template, and with it of these workers; 0 for none, and None if no job
    may have ended it, and may do so again. No job is charged, unless its pool is `isolated`, because this happens
    repeatedly, and only one job was running.

    `wanted`: it was ready, and nobody had asked it to end. `unproven`: none of its workers has ever been ready, and it
    serves one pool only. Then the set-up may have ended it, and there is no other pool to protect.
    """
    if not wanted or (unproven and all(slot.state is State.STARTING for slot in workers)):
        return None
    return workers[0].job if isolated and len(workers) == 1 else 0


def _charged(end: ExitReport, cause: Cause, slot: Snapshot, known: Circumstances) -> ExitReport:
    """The same with the run that is charged, if any is, and what it is charged."""
    run, accused = _run(slot, known, cause)
    if accused:
        end = replace(end, message=f"{end.message}; its last job had just ended, and its outcome was not committed")
    if end.charge == "crash" and slot.places > 1 and slot.together > 1:  # it is not known which
        return replace(end, run=(slot.last_job, slot.last_token) if run == NO_RUN else run, batch=slot.together)
    end = replace(end, run=run, batch=slot.together if slot.places == 1 else 1, last_job=slot.last_job)
    if known.kill is not None and run != known.kill.run:
        end = replace(end, charge="nothing")  # the run it was meant for had ended in the meantime
    blamed = slot.job == 0 and run != NO_RUN
    lost = not blamed and (known.kill is None or cause is Cause.HELD_DATABASE)  # perhaps by a run that has ended
    return replace(end, uncommitted=slot.unsettled if lost else 0)


def _died(slot: Snapshot) -> Effect:
    """Whether it ever committed anything. A batch that kills its worker is smaller next time, so such deaths end
    on their own.
    """
    early = slot.done - slot.unsettled <= slot.lost and slot.together == 1
    return Effect.DIED_EARLY if early else Effect.DIED


def _run(slot: Snapshot, known: Circumstances, cause: Cause) -> tuple[RunKey, bool]:
    """(the run concerned, whether it is charged although it had ended).

    A job can damage its process and return. Its worker then dies before it commits. The first time it is unknown
    which job caused it, if any; the second time it is the job that was again the last one.
    """
    if slot.job:
        return (slot.job, slot.token), False
    if known.kill is not None and known.kill.reason is Cause.HELD_DATABASE:
        # With several ended runs, it is unknown which one it was.
        return known.kill.run if slot.unsettled == 1 else NO_RUN, False
    guilty = slot.unsettled == 1 and (known.cautious or slot.last_job in known.suspects)
    if guilty and cause.charge == "crash" and known.kill is None:
        return (slot.last_job, slot.last_token), True
    return NO_RUN, False


def _cause(slot: Snapshot, known: Circumstances) -> tuple[Cause, int | None, int | None]:
    """(cause, signal, exit code)."""
    status = known.status
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    if known.kill is not None:
        cause = known.kill.reason
    elif number is not None:
        cause = Cause.OUT_OF_MEMORY if number == signal.SIGKILL and known.out_of_memory() else Cause.SIGNAL
    elif code is None:
        cause = Cause.UNKNOWN
    elif slot.phase is Phase.AFTER_INTERRUPT and slot.state is not State.STARTING:
        cause = Cause.AFTER_INTERRUPT
    else:
        cause = Cause.RUINED if code == EXIT_RUINED else Cause.EXIT
    return cause, number, code


def _message(cause: Cause, slot: Snapshot, known: Circumstances, number: int | None, code: int | None) -> str:
    if cause is Cause.RUINED and slot.text:
        return shortened(slot.text)
    message = cause.message.format(
        limit=human(known.timeout),
        signal="" if number is None else name_of(number),
        code=code,
        where="" if slot.state is State.STARTING else " in the middle of its work",
        together=slot.together,
    )
    if cause is Cause.HELD_DATABASE and slot.together > 1:
        message += f"; of its {slot.together} jobs it is not known which left it open"
    if cause is Cause.OUT_OF_MEMORY and known.peak_memory:
        message += f"; it had used {human_size(known.peak_memory)} at its peak"
    return message
