"""A context ends with its run: what uses it later raises, and no other job notices."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from supervisor import Status
from supervisor.domain.errors import ContextClosed
from supervisor.domain.job import Claim
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import RetryPolicy, Settlement
from supervisor.worker.context import BatchContext, Board, Context
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler
from supervisor.worker.runners.batch import BatchExecutor
from tests.site_under_test import MakeSite
from tests.stopwatch import Stopwatch

HANDLERS = """
import threading, time
from ledger import record

LATE = []

def uses(ctx):
    for name, use in (
        ("extend", lambda: ctx.extend(60)),
        ("progress", lambda: ctx.progress(0.9, "late")),
        ("enqueue", lambda: ctx.enqueue("never")),
        ("cancelled", lambda: ctx.cancelled),
        ("log", lambda: ctx.log.info("said too late")),
    ):
        try:
            use()
        except RuntimeError as error:
            yield f"{name}: {type(error).__name__}"
        else:
            yield f"{name}: nothing"

def work(payload, ctx):
    record("start", ctx)
    if payload.get("leaves"):
        LATE.append(ctx)
        if payload.get("fails"):
            raise ValueError("with a context left behind")
    elif payload.get("hangs"):
        threading.Thread(target=lambda: [list(uses(late)) for late in LATE]).start()
        while True:
            time.sleep(0.01)
    else:
        record("end", ctx)
        return [list(uses(late)) for late in LATE]
    record("end", ctx)
"""
POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\ntimeout = "1s"\nretry = { max_attempts = 1 }\n'


@pytest.mark.fault(51)
def test_a_context_that_is_used_after_its_run_raises_and_touches_no_other(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    failing = site.queue.enqueue("work", {"leaves": True, "fails": True})
    site.done(site.queue.enqueue("work", {"leaves": True}))
    last = site.done(site.queue.enqueue("work"))
    raised = [f"{name}: ContextClosed" for name in ("extend", "progress", "enqueue", "cancelled")]
    assert last.result == [[*raised, "log: nothing"]] * 2
    assert last.progress is None
    hanging = site.queue.enqueue("work", {"hangs": True})
    watch = Stopwatch()
    ended = site.queue.wait(hanging, timeout=20)
    assert (ended.status, ended.progress) == (Status.FAILED, None)
    assert watch.seconds(ended.completed_at - ended.started_at) < 3
    assert site.rows("SELECT count(*) FROM job_runs WHERE log LIKE '%said too late%'") == [(0,)]
    assert site.told("said too late")
    site.verdict(failed=[failing, hanging])
    assert not site.rows("SELECT 1 FROM jobs WHERE type = 'never' AND id > 1")


def claim() -> Claim:
    return Claim(1, 1, "tag", "{}", 1, None, 0)


def executor(handle: Callable[..., object]) -> Executor:
    return Executor(Handler(handle, "handle"), Board(), JobPolicy(RetryPolicy(jitter=0)), options={})


@pytest.mark.fault(51)
def test_no_child_is_lost_or_doubled_when_a_run_ends_while_a_thread_enqueues() -> None:
    for _ in range(30):
        outcomes: list[bool] = []
        settlement, thread = ended_while_a_thread_enqueues(outcomes)
        thread.join()
        assert outcomes[-1] is False
        assert len(settlement.children) == outcomes.count(True)


def ended_while_a_thread_enqueues(outcomes: list[bool]) -> tuple[Settlement, threading.Thread]:
    begun = threading.Event()
    threads: list[threading.Thread] = []

    def handle(payload: object, ctx: Context) -> None:
        def enqueue() -> None:
            while outcomes[-1:] != [False]:
                try:
                    ctx.enqueue("next")
                except ContextClosed:
                    outcomes.append(False)
                else:
                    outcomes.append(True)
                begun.set()

        threads.append(threading.Thread(target=enqueue))
        threads[0].start()
        begun.wait()

    return executor(handle).run(claim()), threads[0]


@pytest.mark.fault(51)
def test_the_contexts_of_a_batch_end_with_it() -> None:
    kept: list[Context] = []

    class Batch:
        def handle_batch(self, payloads: list[object], ctx: BatchContext) -> list[object]:
            kept.extend([ctx, *ctx.jobs])
            ctx.jobs[0].enqueue("next")
            return [1] * len(payloads)

    [first, second] = BatchExecutor(Executor(Handler(Batch, "batch"), Board(), JobPolicy(), options={})).run(
        [claim(), claim()._replace(job_id=2)]
    )
    assert (len(first.children), len(second.children)) == (1, 0)
    for ctx in kept:
        with pytest.raises(ContextClosed):
            ctx.extend("1s")
        with pytest.raises(ContextClosed):
            ctx.progress(0.5)
        with pytest.raises(ContextClosed):
            _ = ctx.cancelled


@pytest.mark.fault(51)
def test_what_a_handler_does_to_the_list_of_its_children_changes_nothing() -> None:
    def handle(payload: object, ctx: Context) -> None:
        ctx.enqueue("next")
        ctx.children.append("no job")  # type: ignore[arg-type]
        ctx.children.clear()

    settlement = executor(handle).run(claim())
    assert settlement.status is Status.DONE
    assert [child.type for child in settlement.children] == ["next"]
