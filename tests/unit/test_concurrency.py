"""Several runs in one worker: what is charged when it dies, whose output is whose, and how a thread is interrupted."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.config import load
from supervisor.domain.errors import ConfigError
from supervisor.domain.job import Claim
from supervisor.domain.process_health import CANCEL_GRACE
from supervisor.domain.recovery import JobPolicy, settle_held
from supervisor.domain.settlement import Failure
from supervisor.supervision.exit_reason import Cause, Circumstances, Effect, Kill, explain
from supervisor.supervision.time_limits import Step, TerminationLadder
from supervisor.system.slot import SLOT_BYTES, Slot, State
from supervisor.worker.context import JobInterrupted
from supervisor.worker.event_loop import CURRENT
from supervisor.worker.recorder import SlotBoard
from supervisor.worker.runners.concurrent.calls import JobThreads, interrupt, seal
from supervisor.worker.runners.concurrent.runs import ConcurrentRun, RunLogs, Runs

KILLED = int(signal.SIGKILL)


@pytest.fixture
def slot() -> Slot:
    made = Slot(memoryview(bytearray(SLOT_BYTES)))
    made.assign("w1", "many-1")
    made.state(State.BUSY)
    made.page.concurrency = 50
    return made


def claim(job: int) -> Claim:
    return Claim(job, 1, "many", "{}", 1, None, 0)


def a_run(job: int) -> ConcurrentRun:
    common = cast("SlotBoard", SimpleNamespace(_chunks=None))
    runs = Runs(Slot(memoryview(bytearray(SLOT_BYTES))))
    return ConcurrentRun(claim(job), runs, common, 0.0, 10.0, 50)


def test_a_death_charges_none_of_several_and_halves_their_number(slot: Slot) -> None:
    slot.show((7, 1, 0.0, 9.0), 3)
    slot.end(2, (9, 1), 3)  # two that have ended are not committed
    ended = explain(slot.read(), Circumstances(KILLED))
    assert (ended.charge, ended.run, ended.batch) == ("crash", (7, 1), 5)
    assert (ended.uncommitted, ended.effect) == (0, Effect.DIED)
    held = [claim(job) for job in (7, 8, 9, 10, 11)]
    failure, policy = Failure("crash", ""), JobPolicy()
    settled = settle_held(held, ended.run, ended.charge, failure, policy, 0.5, ended.batch)
    assert {(one.status, one.attempts, one.crashes, one.batch_limit) for one in settled} == {("pending", -1, 0, 3)}


def test_a_death_suspects_those_that_have_ended_and_charges_one_that_runs_alone(slot: Slot) -> None:
    slot.end(3, (9, 1), 0)
    ended = explain(slot.read(), Circumstances(KILLED))
    assert (ended.charge, ended.run, ended.batch, ended.uncommitted) == ("crash", (9, 1), 3, 0)
    slot.page.settled = 3
    slot.show((7, 1, 0.0, 9.0), 1)
    ended = explain(slot.read(), Circumstances(KILLED))
    assert (ended.charge, ended.run, ended.batch) == ("crash", (7, 1), 1)


def test_a_run_that_has_ended_is_shown_no_longer_than_others_run(slot: Slot) -> None:
    slot.show((7, 1, 0.0, 9.0), 2)
    slot.end(1, (7, 1), 1)  # another one runs: which, is shown in a moment
    ended = explain(slot.read(), Circumstances(KILLED))
    assert (ended.batch, ended.uncommitted) == (2, 0)
    slot.end(2, (8, 1), 0)
    slot.page.settled = 1
    ended = explain(slot.read(), Circumstances(KILLED))
    assert (slot.read().job, ended.run, ended.uncommitted, ended.last_job) == (0, (0, 0), 1, 8)


@pytest.mark.parametrize(
    ("reason", "charge", "batch"),
    [(Cause.TIME_LIMIT, "attempt", 1), (Cause.CANCELLED, "cancel", 1), (Cause.STUCK, "crash", 3)],
)
def test_a_run_that_ignores_its_own_limit_is_charged_alone_and_a_stuck_worker_suspects_all(
    slot: Slot, reason: Cause, charge: str, batch: int
) -> None:
    slot.show((7, 1, 0.0, 9.0), 3)
    killed = Circumstances(KILLED, kill=Kill(reason, (7, 1)))
    ended = explain(slot.read(), killed)
    assert (ended.charge, ended.batch) == (charge, batch)
    assert ended.run == (7, 1)
    slot.show((8, 1, 0.0, 9.0), 2)  # it has ended in the meantime
    ended = explain(slot.read(), killed)
    assert (ended.charge, ended.batch) == (("crash", 2) if reason is Cause.STUCK else ("nothing", 1))


def test_the_ladder_stops_a_cancelled_run_among_several(slot: Slot) -> None:
    ladder = TerminationLadder()
    slot.show((7, 1, 1.0, 99.0), 3)
    ladder.cancel(7, 1, 2.0)
    assert ladder.next_step(slot.read(), 2.0 + CANCEL_GRACE - 0.1) is Step.NOTHING
    assert ladder.next_step(slot.read(), 2.0 + CANCEL_GRACE) is Step.INTERRUPT


def test_a_run_whose_limit_was_extended_after_all_is_not_killed(slot: Slot) -> None:
    """Another one has blocked the event loop."""
    ladder = TerminationLadder()
    slot.show((7, 1, 0.0, 9.0), 3)
    assert ladder.next_step(slot.read(), 9.0) is Step.INTERRUPT
    slot.show((7, 1, 0.0, 20.0), 3)
    assert ladder.next_step(slot.read(), 15.0) is Step.NOTHING
    assert ladder.due == 20.0
    assert ladder.next_step(slot.read(), 20.0) is Step.INTERRUPT
    assert ladder.next_step(slot.read(), 25.0) is Step.KILL


def test_a_worker_with_free_places_is_woken_although_it_is_busy(slot: Slot) -> None:
    assert not slot.page.is_idle
    slot.page.open = True
    assert slot.page.is_idle


def test_what_is_printed_belongs_to_the_run_of_its_context() -> None:
    logs, one, other = RunLogs(), a_run(1), a_run(2)
    logs.begin(one, alone=True)
    for run in (one, other, None):
        context = contextvars.copy_context()
        context.run(CURRENT.set, run)
        context.run(logs.line, f"by {run.claim.job_id if run else 'nobody'}")
    assert (logs.end(one), logs.end(other), logs.end(a_run(3))) == ("by 1\n", "by 2\n", None)
    logs.begin(third := a_run(4), alone=True)
    assert logs.end(third) is None  # nothing of the one before


@pytest.mark.parametrize("swallow", [False, True])
def test_a_thread_is_interrupted_in_its_own_run_only(swallow: bool) -> None:
    run, next_run, ends = a_run(1), a_run(2), []
    began, done = threading.Event(), threading.Event()

    def first() -> None:
        run.thread = threading.get_ident()
        began.set()
        try:
            while True:
                time.sleep(0.001)
        except JobInterrupted:
            if not swallow:
                ends.append("interrupted")
        seal(run)

    def second() -> None:
        next_run.thread = threading.get_ident()
        for _ in range(50):
            time.sleep(0.001)
        seal(next_run)
        ends.append("whole")
        done.set()

    pool = JobThreads()
    pool.run(first)
    assert began.wait(5)
    interrupt(run)
    interrupt(run)
    pool.run(second)
    assert done.wait(5)
    assert ends == [*([] if swallow else ["interrupted"]), "whole"]


def test_a_run_that_has_ended_is_not_interrupted() -> None:
    run, done, ended = a_run(1), threading.Event(), threading.Event()

    def call() -> None:
        run.thread = threading.get_ident()
        seal(run)
        ended.set()
        for _ in range(50):
            time.sleep(0.001)
        done.set()

    JobThreads().run(call)
    assert ended.wait(5)
    interrupt(run)
    assert done.wait(5)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            'handler = "jobs:many"\nbatch_size = 2',
            "concurrency: a worker runs batches one at a time: raise batch_size or concurrency, not both",
        ),
        ('command = ["cat"]', "concurrency: a program is given one job at a time; raise workers instead"),
    ],
)
def test_what_does_not_combine_is_one_sentence(tmp_path: Path, keys: str, sentence: str) -> None:
    path = tmp_path / "supervisor.toml"
    path.write_text(f"[pools.many]\nconcurrency = 2\n{keys}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [problem.split(": pools.many.")[-1] for problem in caught.value.problems] == [sentence]


@pytest.mark.parametrize(("value", "good"), [("0", False), ("1", True), ("1000", True), ("1001", False)])
def test_concurrency_is_from_1_to_1000(tmp_path: Path, value: str, good: bool) -> None:
    path = tmp_path / "supervisor.toml"
    path.write_text(f'[defaults]\nconcurrency = {value}\n[pools.many]\nhandler = "jobs:many"\n')
    if good:
        assert load(path).pools["many"].concurrency == int(value)
    else:
        with pytest.raises(ConfigError):
            load(path)
