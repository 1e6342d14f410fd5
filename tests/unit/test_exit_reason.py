"""Why a worker ended, and which run is charged what for it: decided by its last slot alone."""

from __future__ import annotations

import signal

import pytest

from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE, TemplateDeaths
from supervisor.supervision.exit_reason import (
    Cause,
    Circumstances,
    Effect,
    Kill,
    accused_of,
    explain,
)
from supervisor.supervision.time_limits import Step, TerminationLadder
from supervisor.system.slot import SLOT_BYTES, Cancel, Phase, Slot, State
from supervisor.worker.fitness import EXIT_RUINED

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
        (Cause.CANCELLED, "cancel"),
        (Cause.TIME_LIMIT, "attempt"),
        (Cause.STUCK, "crash"),
        (Cause.STOPPED, "crash"),
        (Cause.ALONE, "crash"),
    ],
)
def test_a_kill_charges_the_run_that_it_was_meant_for_and_no_other(slot: Slot, reason: Cause, charge: str) -> None:
    known = Circumstances(KILLED, kill=Kill(reason, (7, 1)))
    slot.begin(7, 1, 0.0, 0.0)
    assert explain(slot.read(), known).charge == charge
    assert explain(slot.read(), known).run == (7, 1)
    slot.begin(7, 2, 0.0, 0.0)  # the same job again
    assert explain(slot.read(), known).charge == "nothing"
    slot.begin(8, 1, 0.0, 0.0, batch=4)  # a batch that has begun in the meantime
    assert explain(slot.read(), known).charge == "nothing"


@pytest.mark.fault(68)
def test_a_kill_charges_nobody_if_its_run_has_ended_or_there_was_none(slot: Slot) -> None:
    slot.begin(7, 1, 0.0, 0.0)
    assert explain(slot.read(), Circumstances(KILLED, kill=Kill(Cause.STOPPED))).charge == "nothing"
    slot.finish(1)
    for cautious in (False, True):
        ended = explain(slot.read(), Circumstances(KILLED, kill=Kill(Cause.CANCELLED, (7, 1)), cautious=cautious))
        assert (ended.charge, ended.run, ended.uncommitted) == ("nothing", (0, 0), 0)


@pytest.mark.fault(68)
def test_each_of_several_cancels_is_enforced_when_its_run_comes(slot: Slot) -> None:
    ladder = TerminationLadder()
    slot.begin(7, 1, 10.0, 0.0)
    ladder.cancel(7, 1, 10.0)
    ladder.cancel(8, 1, 11.0)  # in hand, not begun
    ladder.cancel(7, 1, 12.0)  # told again
    assert ladder.next_step(slot.read(), 10.0 + CANCEL_GRACE) is Step.INTERRUPT
    assert (ladder.run, ladder.reason) == ((7, 1), Cancel.REQUESTED)
    assert ladder.next_step(slot.read(), 10.0 + CANCEL_GRACE + KILL_GRACE) is Step.KILL
    slot.begin(9, 1, 20.0, 0.0)
    assert ladder.next_step(slot.read(), 99.0) is Step.NOTHING
    slot.begin(8, 1, 100.0, 0.0)
    assert ladder.next_step(slot.read(), 100.0) is Step.NOTHING
    assert ladder.next_step(slot.read(), 100.0 + CANCEL_GRACE) is Step.INTERRUPT


@pytest.mark.fault(45)
def test_a_run_that_had_ended_uncommitted_is_charged_the_second_time(slot: Slot) -> None:
    slot.begin(7, 1, 0.0, 0.0)
    slot.finish(1)
    first = explain(slot.read(), Circumstances(EXIT_3))
    assert (first.run, first.uncommitted, first.last_job, first.effect) == ((0, 0), 1, 7, Effect.DIED_EARLY)
    for known in (
        Circumstances(EXIT_3, cautious=True),
        Circumstances(EXIT_3, suspects=frozenset({7})),
        Circumstances(EXIT_RUINED << 8, cautious=True),
    ):
        second = explain(slot.read(), known)
        assert (second.charge, second.run) == ("crash", (7, 1))
        assert "had just ended" in second.message
    assert explain(slot.read(), Circumstances(EXIT_3, suspects=frozenset({8}))).run == (0, 0)


@pytest.mark.fault(45)
def test_a_death_with_nothing_committed_is_early_whatever_had_run(slot: Slot) -> None:
    for job in range(1, 4):
        slot.begin(job, 1, 0.0, 0.0)
        slot.finish(job)
    assert explain(slot.read(), Circumstances(EXIT_3)).effect is Effect.DIED_EARLY
    slot.page.settled = 2
    assert explain(slot.read(), Circumstances(EXIT_3)).effect is Effect.DIED


@pytest.mark.fault(45)
def test_the_exit_code_of_a_ruined_worker_tells_with_the_words_of_its_slot(slot: Slot) -> None:
    slot.begin(7, 1, 0.0, 0.0)
    slot.tell("its own descriptors were closed")
    ended = explain(slot.read(), Circumstances(EXIT_RUINED << 8))
    assert (ended.reason, ended.message, ended.charge) == ("ruined", "its own descriptors were closed", "crash")


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
    ("known", "why"),
    [
        (Circumstances(EXIT_3), "the worker's process ended with exit code 3"),
        (Circumstances(signal.SIGSEGV), "the worker was killed by SIGSEGV"),
        (Circumstances(KILLED, out_of_memory=lambda: True), Cause.OUT_OF_MEMORY.message),
        (Circumstances(None, kill=Kill(Cause.TEMPLATE), unproven=True), "the template it was forked from died"),
        (Circumstances(KILLED), "the worker was killed by SIGKILL"),
        (Circumstances(KILLED, kill=Kill(Cause.STOPPED)), "the worker was stopped by a signal; it was killed"),
    ],
)
def test_whatever_ends_a_worker_before_it_is_ready_its_set_up_has_failed(
    slot: Slot, phase: Phase, known: Circumstances, why: str
) -> None:
    slot.state(State.STARTING)
    slot.page.phase_number = phase
    ended = explain(slot.read(), known)
    reason = "setup_failed" if known.kill is None else known.kill.reason.word
    assert (ended.effect, ended.charge, ended.reason) == (Effect.SET_UP_FAILED, "nothing", reason)
    assert ended.message == f"{phase.label} failed: {why}"


@pytest.mark.fault(111)
@pytest.mark.parametrize("reason", [Cause.TEMPLATE, Cause.SHUTDOWN, Cause.PARTITION, Cause.UNSTARTED])
def test_its_set_up_has_not_failed_if_something_else_ended_it(slot: Slot, reason: Cause) -> None:
    slot.state(State.STARTING)
    assert explain(slot.read(), Circumstances(KILLED, kill=Kill(reason))).effect is not Effect.SET_UP_FAILED


@pytest.mark.parametrize(
    ("wanted", "isolated", "unproven", "running", "expected"),
    [
        (True, False, False, [7, 8], 0),  # an accident, or one of the two: nobody knows
        (True, True, False, [7], 7),
        (True, True, False, [0], 0),
        (True, True, False, [7, 8], 0),
        (False, True, False, [7], None),  # it was told to end
        (True, False, True, [None], None),  # its set-up ended it, which concerns its pool alone
        (True, False, False, [None], 0),  # it may end the workers of other pools, too
        (True, False, True, [7], 0),
    ],
)
def test_a_template_that_dies_with_one_job_in_an_isolated_pool_accuses_it(
    wanted: bool, isolated: bool, unproven: bool, running: list[int | None], expected: int | None
) -> None:
    """None is a worker that is being set up, 0 one without a job."""
    slots = []
    for job in running:
        slot = Slot(memoryview(bytearray(SLOT_BYTES)))
        slot.assign("w1", "tag-1")
        if job is not None:
            slot.state(State.BUSY if job else State.IDLE)
        if job:
            slot.begin(job, 1, 0.0, 0.0)
        slots.append(slot.read())
    assert accused_of(slots, wanted=wanted, isolated=isolated, unproven=unproven) == expected
