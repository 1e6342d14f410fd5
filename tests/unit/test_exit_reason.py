"""Why a worker ended, and which run is charged what for it: decided by its last slot alone."""

from __future__ import annotations

import os
import signal

import pytest

from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE, TemplateDeaths
from supervisor.supervision import exit_reason
from supervisor.supervision.exit_reason import Circumstances, Kill, explain
from supervisor.supervision.worker_process import Step, TerminationLadder
from supervisor.system.slot import SLOT_BYTES, Cancel, Phase, Slot, State

KILLED = int(signal.SIGKILL)
EXIT_3 = 3 << 8


@pytest.fixture
def slot() -> Slot:
    made = Slot(memoryview(bytearray(SLOT_BYTES)))
    made.assign("w1", "tag-1")
    made.state(State.BUSY)
    return made


@pytest.mark.fault(68)
@pytest.mark.parametrize(
    ("reason", "charge"),
    [
        (exit_reason.CANCELLED, "cancel"),
        (exit_reason.TIME_LIMIT, "attempt"),
        (exit_reason.STUCK, "crash"),
        (exit_reason.STOPPED, "crash"),
        (exit_reason.ALONE, "crash"),
    ],
)
def test_a_kill_charges_the_run_that_it_was_meant_for_and_no_other(slot: Slot, reason: str, charge: str) -> None:
    known = Circumstances(KILLED, kill=Kill(reason, (7, 1)))
    slot.work.begin(7, 1, 0.0, 0.0)
    assert explain(slot.read(), known).charge == charge
    assert explain(slot.read(), known).run == (7, 1)
    slot.work.begin(7, 2, 0.0, 0.0)  # the same job again
    assert explain(slot.read(), known).charge == "nothing"
    slot.work.begin(8, 1, 0.0, 0.0, batch=4)  # a batch that has begun in the meantime
    assert explain(slot.read(), known).charge == "nothing"


@pytest.mark.fault(68)
def test_a_kill_that_comes_when_its_run_has_ended_charges_nobody(slot: Slot) -> None:
    slot.work.begin(7, 1, 0.0, 0.0)
    slot.work.finish(1)
    for cautious in (False, True):
        ended = explain(slot.read(), Circumstances(KILLED, kill=Kill(exit_reason.CANCELLED, (7, 1)), cautious=cautious))
        assert (ended.charge, ended.run, ended.uncommitted) == ("nothing", (0, 0), 0)


@pytest.mark.fault(68)
def test_a_kill_of_a_worker_without_a_job_charges_no_job_that_begins_before_it_dies(slot: Slot) -> None:
    slot.work.begin(7, 1, 0.0, 0.0)
    assert explain(slot.read(), Circumstances(KILLED, kill=Kill(exit_reason.STOPPED))).charge == "nothing"


@pytest.mark.fault(68)
def test_each_of_several_cancels_is_enforced_when_its_run_comes(slot: Slot) -> None:
    ladder = TerminationLadder()
    slot.work.begin(7, 1, 10.0, 0.0)
    ladder.cancel(7, 1, 10.0)
    ladder.cancel(8, 1, 11.0)  # in hand, not begun
    ladder.cancel(7, 1, 12.0)  # told again
    assert ladder.next_step(slot.read(), 10.0 + CANCEL_GRACE) is Step.INTERRUPT
    assert (ladder.run, ladder.reason) == ((7, 1), Cancel.REQUESTED)
    assert ladder.next_step(slot.read(), 10.0 + CANCEL_GRACE + KILL_GRACE) is Step.KILL
    slot.work.begin(9, 1, 20.0, 0.0)
    assert ladder.next_step(slot.read(), 99.0) is Step.NOTHING
    slot.work.begin(8, 1, 100.0, 0.0)
    assert ladder.next_step(slot.read(), 100.0) is Step.NOTHING
    assert ladder.next_step(slot.read(), 100.0 + CANCEL_GRACE) is Step.INTERRUPT


@pytest.mark.fault(45)
def test_a_run_that_had_ended_uncommitted_is_charged_the_second_time(slot: Slot) -> None:
    slot.work.begin(7, 1, 0.0, 0.0)
    slot.work.finish(1)
    first = explain(slot.read(), Circumstances(EXIT_3))
    assert (first.run, first.uncommitted, first.last_job, first.early) == ((0, 0), 1, 7, True)
    for known in (
        Circumstances(EXIT_3, cautious=True),
        Circumstances(EXIT_3, suspects=frozenset({7})),
        Circumstances(exit_reason.RUINED << 8, cautious=True),
    ):
        second = explain(slot.read(), known)
        assert (second.charge, second.run) == ("crash", (7, 1))
        assert "had just ended" in second.message
    assert explain(slot.read(), Circumstances(EXIT_3, suspects=frozenset({8}))).run == (0, 0)


@pytest.mark.fault(45)
def test_a_death_with_nothing_committed_is_early_whatever_had_run(slot: Slot) -> None:
    for job in range(1, 4):
        slot.work.begin(job, 1, 0.0, 0.0)
        slot.work.finish(job)
    assert explain(slot.read(), Circumstances(EXIT_3)).early
    slot.work.settle(2)
    assert not explain(slot.read(), Circumstances(EXIT_3)).early


@pytest.mark.fault(45)
def test_the_exit_code_of_a_ruined_worker_tells_with_the_words_of_its_slot(slot: Slot) -> None:
    slot.work.begin(7, 1, 0.0, 0.0)
    slot.tell("its own descriptors were closed")
    ended = explain(slot.read(), Circumstances(exit_reason.RUINED << 8))
    assert (ended.reason, ended.message, ended.charge) == ("ruined", "its own descriptors were closed", "crash")
    assert os.waitstatus_to_exitcode(exit_reason.RUINED << 8) == exit_reason.RUINED


@pytest.mark.fault(46)
def test_templates_that_die_again_and_again_are_isolated_and_released_when_the_job_is_found() -> None:
    once = TemplateDeaths().died(100.0)
    assert (once.isolated(100.0), once.not_before) == (False, 0.0)
    twice = once.died(101.0)
    assert twice.isolated(101.0)
    assert 101.0 < twice.not_before < 102.0
    assert not twice.isolated(twice.isolated_until)
    assert twice.died(150.0).isolated(200.0)  # one more, and longer
    assert not TemplateDeaths().died(100.0).died(5000.0).isolated(5000.0)
    assert twice.charge(7, 3).charge(8, 3).charge(7, 3).isolated(102.0)
    assert not twice.charge(7, 3).charge(7, 3).charge(7, 3).isolated(102.0)


@pytest.mark.fault(110)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("known", "reason", "why"),
    [
        (Circumstances(EXIT_3), "setup_failed", "the worker's process ended with exit code 3"),
        (Circumstances(0), "setup_failed", "the worker's process ended with exit code 0"),
        (Circumstances(signal.SIGSEGV), "setup_failed", "the worker was killed by SIGSEGV"),
        (
            Circumstances(KILLED, out_of_memory=lambda: True),
            "setup_failed",
            "the kernel killed the worker because it was out of memory",
        ),
        (
            Circumstances(None, kill=Kill(exit_reason.TEMPLATE), unproven=True),
            "template_died",
            "the template it was forked from died",
        ),
        (Circumstances(KILLED), "signal", "the worker was killed by SIGKILL"),
        (
            Circumstances(KILLED, kill=Kill(exit_reason.STOPPED)),
            "stopped",
            "the worker was stopped by a signal; it was killed",
        ),
    ],
)
def test_whatever_ends_a_worker_before_it_is_ready_its_set_up_has_failed(
    slot: Slot, phase: Phase, known: Circumstances, reason: str, why: str
) -> None:
    slot.state(State.STARTING)
    slot.enter(phase)
    ended = explain(slot.read(), known)
    assert (ended.broken, ended.charge, ended.reason) == (True, "nothing", reason)
    assert ended.by_signal == (reason != "setup_failed")
    assert ended.message == f"{phase.label} failed: {why}"


@pytest.mark.fault(111)
@pytest.mark.parametrize(
    "reason", [exit_reason.TEMPLATE, exit_reason.SHUTDOWN, exit_reason.PARTITION, exit_reason.UNWATCHED]
)
def test_its_set_up_has_not_failed_if_something_else_ended_it(slot: Slot, reason: str) -> None:
    slot.state(State.STARTING)
    assert not explain(slot.read(), Circumstances(KILLED, kill=Kill(reason))).broken
