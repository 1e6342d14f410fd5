"""A batch's outcomes, and what a handler for batches may look like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from supervisor import Fail, Retry
from supervisor.domain.job import Claim, Status
from supervisor.domain.process_health import KILL_GRACE
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import RetryPolicy, Settlement
from supervisor.supervision.time_limits import Step, TerminationLadder
from supervisor.system.slot import SLOT_BYTES, Slot, State
from supervisor.worker.context import BatchContext, Board, Context, JobInterrupted
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler, HandlerError
from supervisor.worker.recorder import Recorder
from supervisor.worker.runners.batch import BatchExecutor


def claims(*payloads: str) -> list[Claim]:
    return [Claim(n, 1, "tag", payload, 1, None, 0) for n, payload in enumerate(payloads or ("1", "2", "3"), 1)]


def run(handle_batch: Callable[[Any, list[Any], BatchContext], Any], *payloads: str) -> list[Settlement]:
    handler = type("Batch", (), {"handle_batch": handle_batch})
    executor = Executor(Handler(handler, "batch"), Board(), JobPolicy(RetryPolicy(jitter=0)), options={})
    return BatchExecutor(executor).run(claims(*payloads))


def limits(settlements: Sequence[Settlement]) -> list[int]:
    return [settlement.batch_limit for settlement in settlements]


def test_each_job_has_its_own_result_children_and_failure() -> None:
    def handle_batch(self: object, payloads: list[int], ctx: BatchContext) -> list[Any]:
        ctx.jobs[0].enqueue("next", {"of": ctx.jobs[0].job_id})
        return [payloads[0] * 10, Retry(after=7.0), Fail("never")]

    first, second, third = run(handle_batch)

    assert (first.status, first.result, [job.type for job in first.children]) == (Status.DONE, "10", ["next"])
    assert (second.status, second.delay, second.children) == (Status.PENDING, 7.0, ())
    assert third.status is Status.FAILED
    assert third.failure is not None
    assert (third.failure.kind, third.failure.message) == ("permanent", "never")


def test_what_an_interrupted_run_of_one_job_has_logged_is_kept() -> None:
    recorder = Recorder()

    class Batch:
        def handle_batch(self, payloads: list[Any], ctx: BatchContext) -> list[Any]:
            recorder.run_log.line("so far")
            raise JobInterrupted

    executor = Executor(Handler(Batch, "batch"), Board(), JobPolicy(RetryPolicy()), options={}, recorder=recorder)
    [settlement] = BatchExecutor(executor).run(claims("1"))

    assert settlement.status is Status.CANCELLED
    assert settlement.usage is not None
    assert settlement.usage.log == "so far\n"


def test_what_is_no_json_never_reaches_the_handler_and_fails_alone() -> None:
    seen: list[Any] = []

    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> list[None]:
        seen.append((payloads, [job.job_id for job in ctx.jobs]))
        return [None] * len(payloads)

    by_id = {settlement.job_id: settlement for settlement in run(handle_batch, "1", "{", "3")}

    assert seen == [([1, 3], [1, 3])]
    assert [by_id[n].status for n in (1, 2, 3)] == [Status.DONE, Status.FAILED, Status.DONE]
    assert [s.status for s in run(handle_batch, "{", "[")] == [Status.FAILED] * 2
    assert len(seen) == 1


@pytest.mark.parametrize(
    "error", [ValueError("whose?"), Fail("whose?"), MemoryError(), JobInterrupted(), SystemExit(3)]
)
def test_a_batch_that_raises_is_nobodys_fault(error: BaseException) -> None:
    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> None:
        raise error

    settlements = run(handle_batch)

    assert limits(settlements) == [2, 2, 2]
    assert {(s.status, s.attempts, s.crashes, s.failure) for s in settlements} == {(Status.PENDING, -1, 0, None)}
    [alone] = run(handle_batch, "1")
    assert (alone.batch_limit, alone.attempts) == (0, 0)


def test_a_wish_to_retry_is_everybodys() -> None:
    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> None:
        raise Retry(after=3.0)

    settlements = run(handle_batch)

    assert [(s.status, s.delay, s.attempts, s.batch_limit) for s in settlements] == [(Status.PENDING, 3.0, 0, 0)] * 3


@pytest.mark.parametrize(
    ("returned", "words"),
    [([], "handle_batch returned 0 results for 1 job"), ({}, "must return a list"), (None, "must return a list")],
)
def test_results_that_are_not_one_each_fail_the_job_that_is_alone(returned: object, words: str) -> None:
    [alone] = run(lambda self, payloads, ctx: returned, "1")

    assert alone.failure is not None
    assert words in alone.failure.message
    assert limits(run(lambda self, payloads, ctx: returned)) == [2, 2, 2]


def test_what_is_no_json_in_the_results_fails_that_job() -> None:
    settlements = run(lambda self, payloads, ctx: [1, {2}, 3])

    assert [s.status for s in settlements] == [Status.DONE, Status.FAILED, Status.DONE]
    assert settlements[1].failure is not None
    assert settlements[1].failure.kind == "result"


def test_in_a_batch_jobs_are_enqueued_through_one_of_its_jobs() -> None:
    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> None:
        ctx.enqueue("next")

    [alone] = run(handle_batch, "1")
    assert alone.failure is not None
    assert "through one of ctx.jobs" in alone.failure.message


def test_what_belongs_to_one_job_is_not_the_batchs() -> None:
    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> list[Any]:
        told = []
        for name in ("idempotency_key", "meta", "batch"):
            with pytest.raises(TypeError, match=r"one of ctx\.jobs"):
                getattr(ctx, name)
            told.append([getattr(job, name) for job in ctx.jobs])
        return [list(each) for each in zip(*told, strict=True)]

    assert [s.result for s in run(handle_batch, "1", "2")] == ['["test-1",{},null]', '["test-2",{},null]']


class Async:
    async def handle_batch(self, payloads: list[Any], ctx: Context) -> list[Any]:
        await asyncio.sleep(0)
        return [KeyError("x") if payload == 2 else payload for payload in payloads]


class Plain:
    def handle_batch(self, payloads: list[Any], ctx: Context) -> list[Any]:
        return [KeyError("x") if payload == 2 else payload for payload in payloads]


@pytest.mark.parametrize("target", [Async, Plain])
def test_a_handler_for_batches_serves_single_jobs_too(target: type) -> None:
    handler = Handler(target, "batch")
    executor = Executor(handler, Board(), JobPolicy(), options={})

    assert [executor.run(claim).status for claim in claims()] == [Status.DONE, Status.PENDING, Status.DONE]
    assert [s.status for s in BatchExecutor(executor).run(claims())] == [Status.DONE, Status.PENDING, Status.DONE]
    handler.teardown(executor.context())


def tell(payloads: list[Any], ctx: BatchContext) -> list[Any]:
    ctx.progress(0.5)
    ctx.jobs[0].enqueue("next", {})
    return [[job.job_id, job.attempt, ctx.type, ctx.device, job.device] for job in ctx.jobs]


async def tell_later(payloads: list[Any], ctx: BatchContext) -> list[Any]:
    await asyncio.sleep(0)
    return tell(payloads, ctx)


async def tell_as_method(self: object, payloads: list[Any], ctx: BatchContext) -> list[Any]:
    return await tell_later(payloads, ctx)


@pytest.mark.parametrize(
    "handle_batch",
    [
        lambda self, payloads, ctx: tell(payloads, ctx),
        tell_as_method,
    ],
    ids=["plain", "async"],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_handler_for_batches_finds_its_jobs_even_if_it_gets_one_alone(handle_batch: Any, alone: bool) -> None:
    handler = Handler(type("Batch", (), {"handle_batch": handle_batch}), "batch")
    executor = Executor(handler, Board(), JobPolicy(), options={}, device="1")
    [claim] = claims("{}")
    [settlement] = [executor.run(claim)] if alone else BatchExecutor(executor).run([claim])
    assert (settlement.status, settlement.result) == (Status.DONE, '[1,1,"tag","1","1"]'), settlement.failure
    assert [child.type for child in settlement.children] == ["next"]
    assert settlement.progress == 1.0  # it has reported some
    handler.teardown(executor.context())


def test_a_batch_of_one_is_cancelled_with_its_job() -> None:
    class Cancelled(Board):
        def cancelled(self, job: int, token: int) -> bool:
            return job == 7

    first, second = (Context(Cancelled(), claim=Claim(job, 1, "tag", "", 1, None, 0)) for job in (7, 8))
    assert BatchContext(first._board, [first]).cancelled
    assert not BatchContext(second._board, [second]).cancelled
    assert not BatchContext(Cancelled(), [first, second]).cancelled


def test_who_handles_single_jobs_only_is_refused_for_batches() -> None:
    class Single:
        def handle(self, payload: Any, ctx: Context) -> None: ...

    for target in (Single, lambda payload, ctx: None):
        with pytest.raises(HandlerError, match="needs a class with a method handle_batch"):
            Handler(target, "jobs:single").insist_on_batches()
    with pytest.raises(HandlerError, match="no method handle"):
        Handler(type("Neither", (), {}), "jobs:neither")


def test_a_job_in_a_batch_is_not_stopped_alone_but_the_batch_is_at_its_time_limit() -> None:
    slot = Slot(memoryview(bytearray(SLOT_BYTES)))
    slot.assign("w1", "tag-1")
    slot.state(State.BUSY)
    slot.begin(7, 1, 0.0, 100.0, batch=4)
    ladder = TerminationLadder()
    ladder.cancel(7, 1, 10.0)

    assert ladder.next_step(slot.read(), 99.0) is Step.NOTHING
    assert ladder.due == 100.0
    assert ladder.next_step(slot.read(), 100.0) is Step.INTERRUPT
    assert ladder.next_step(slot.read(), 100.0 + KILL_GRACE) is Step.KILL
