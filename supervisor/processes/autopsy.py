"""Why a worker ended, in words, and what its job is charged for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from supervisor.domain.duration import human, human_size
from supervisor.domain.policy import Charge
from supervisor.system.scoreboard import Snapshot, State
from supervisor.system.signals import name_of

# Why the supervisor itself killed a worker.
TIME_LIMIT = "time_limit"
CANCELLED = "cancelled"
STUCK = "stuck"
STOPPED = "stopped"
SHUTDOWN = "shutdown"
STARTUP = "startup_timeout"
TEMPLATE = "template_died"
UNWATCHED = "unwatched"
HELD_DATABASE = "held_database"
HELD_EARLIER = "held_database_earlier"  # through one of the runs before the one that it was killed in

OUT_OF_MEMORY = "out_of_memory"  # the kernel's own reason

_CHARGES: dict[str, Charge] = {
    TIME_LIMIT: "attempt",
    CANCELLED: "cancel",
    STUCK: "crash",
    STOPPED: "crash",
    SHUTDOWN: "nothing",
    STARTUP: "nothing",
    TEMPLATE: "nothing",
    UNWATCHED: "nothing",
    HELD_DATABASE: "crash",
    HELD_EARLIER: "nothing",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`expected` ends are no news; `reason` is one word for logs, `message` a sentence for people."""

    reason: str
    message: str
    charge: Charge
    expected: bool = False
    broken: bool = False
    failure: dict[str, Any] = field(default_factory=dict)


def examine(
    slot: Snapshot,
    status: int | None,
    *,
    killed_for: str = "",
    tail: bytes = b"",
    peak_memory: int | None = None,
    out_of_memory: Callable[[], bool] = lambda: False,
    timeout: float = 0.0,
    ran: float | None = None,
) -> Finding:
    """Judge a death by its wait status (None: unknown), the worker's last slot and what we did to it.

    `out_of_memory` tells whether the kernel has just killed somebody for memory; it is asked only about a kill
    that nobody else has confessed to.
    """
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    if slot.state is State.BROKEN:
        return Finding("setup_failed", slot.text, "nothing", broken=True)
    if slot.state is State.LEFT and slot.job == 0 and slot.lost:
        return Finding("program_died", slot.text, "nothing")  # the worker has charged its job already
    if slot.state is State.LEFT and slot.job == 0:
        return Finding("left", "it left as it was told", "nothing", expected=True)
    if number == signal.SIGKILL and not killed_for and out_of_memory():
        killed_for = OUT_OF_MEMORY
    reason, message, kind = _cause(slot, code, number, killed_for, timeout)
    if killed_for == OUT_OF_MEMORY and peak_memory:
        message += f"; it had used {human_size(peak_memory)} at its peak"
    return Finding(
        reason,
        message,
        _CHARGES.get(killed_for, "crash"),
        expected=killed_for == SHUTDOWN,
        failure={
            "kind": kind,
            "message": message,
            "exit_code": code,
            "signal": None if number is None else name_of(number),
            "stderr": tail.decode("utf-8", "replace") or None,
            "peak_memory": peak_memory,
            "duration": ran,
        },
    )


def blamed(slot: Snapshot, killed_for: str) -> tuple[int, int]:
    """The job and the token that a death is charged to, (0, 0) for none: the run that had begun, or of a worker that
    was killed for what its last run had left behind, that one.
    """
    if killed_for == HELD_DATABASE and slot.job == 0 and slot.unsettled == 1:
        return slot.last_job, slot.last_token
    return slot.job, slot.token


def _cause(
    slot: Snapshot, code: int | None, number: int | None, killed_for: str, timeout: float
) -> tuple[str, str, str]:
    """(reason, message, kind of failure)."""
    if killed_for == TIME_LIMIT:
        return TIME_LIMIT, f"over its time limit of {human(timeout)}; the worker was killed", "timeout"
    words = {
        CANCELLED: "cancelled, and killed because it did not stop",
        STUCK: "the worker was stuck: no beat and no CPU used; it was killed",
        STOPPED: "the worker had been stopped from outside; it was killed",
        SHUTDOWN: "the supervisor shut down before the job was done",
        STARTUP: "the worker was not set up within startup_timeout; it was killed",
        TEMPLATE: "the template that it was forked from died",
        OUT_OF_MEMORY: "the kernel killed the worker because it was out of memory",
        HELD_DATABASE: "it held the database's write lock after its end: a transaction was not committed"
        if slot.job == 0
        else "it held the database's write lock for longer than its time limit: a transaction was not committed",
        HELD_EARLIER: "an earlier run in the same worker had left a transaction on the database open",
        UNWATCHED: "the supervisor may open no more files, so it could not be watched",
    }
    if killed_for in words:
        return killed_for, words[killed_for], killed_for
    if number is not None:
        return "signal", f"the worker was killed by {name_of(number)}", "crash"
    if code is not None:
        return "exit", f"the worker's process ended with exit code {code} in the middle of its work", "crash"
    return "unknown", "the worker died; how is not known", "crash"
