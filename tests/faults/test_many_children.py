"""A run may enqueue many jobs, but not without end: all of them are inserted in one transaction."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import Claim
from supervisor.domain.recovery import JobPolicy
from supervisor.worker.context import MAX_CHILDREN, BatchContext, Board, Context
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler
from supervisor.worker.runners.batch import BatchExecutor
from tests.site_under_test import MakeSite, wait_for

HANDLERS = """
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    for number in range(payload.get("children", 0)):
        ctx.enqueue("child", {"number": number, "text": "x" * payload.get("bytes", 0)})
    record("end", ctx)
"""
POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"children": 400_000}, "a run may enqueue at most 10,000 jobs"),
        ({"children": 1000, "bytes": 1_000_000}, "may have 64MiB together"),
    ],
)
def test_a_run_that_enqueues_without_end_fails_for_itself(
    make_site: MakeSite, payload: dict[str, int], why: str
) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    endless = site.queue.enqueue("work", payload)
    behind = site.queue.enqueue("work")
    site.verdict(failed=[endless])
    assert why in (site.job(endless).last_error or "")
    assert (site.job(endless).crashes, site.job(behind).crashes) == (0, 0)
    assert site.rows("SELECT count(*) FROM jobs WHERE type = 'child'") == [(0,)]


@pytest.mark.fault(52)
def test_as_many_as_are_allowed_are_enqueued(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    for job in site.queue.enqueue_many("work", [{"children": MAX_CHILDREN}, {"children": 3}, {"children": 3}]):
        site.done(job)
    assert site.rows("SELECT count(*) FROM jobs WHERE type = 'child'") == [(MAX_CHILDREN + 6,)]


@pytest.mark.fault(52)
def test_what_the_runs_of_one_hand_enqueue_is_committed_bit_by_bit(make_site: MakeSite) -> None:
    site = make_site(POOL.replace("workers = 1\n", "workers = 1\nprefetch = 6\n"), HANDLERS)
    jobs = site.queue.enqueue_many("work", [{"children": 900}] * 6)
    site.start()
    found = wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE type = 'child'")[0][0], "some children")
    assert found < 6 * 900
    for job in jobs:
        site.done(job)


@pytest.mark.fault(52)
def test_the_jobs_of_a_batch_share_what_a_run_may_enqueue() -> None:
    refused: list[str] = []

    def handle_batch(self: object, payloads: list[Any], ctx: BatchContext) -> list[None]:
        for job in ctx.jobs:
            for _ in range(MAX_CHILDREN // 2 + 1):
                enqueue(job)
        return [None] * len(payloads)

    def enqueue(ctx: Context) -> None:
        try:
            ctx.enqueue("child")
        except InvalidJob as error:
            refused.append(error.field)

    handler = Handler(type("Batch", (), {"handle_batch": handle_batch}), "batch")
    claims = [Claim(n, 1, "tag", "{}", 1, None, 0) for n in (1, 2)]
    settlements = BatchExecutor(Executor(handler, Board(), JobPolicy(), options={})).run(claims)
    assert [len(settlement.children) for settlement in settlements] == [MAX_CHILDREN // 2 + 1, MAX_CHILDREN // 2 - 1]
    assert refused == ["enqueue"] * 2
