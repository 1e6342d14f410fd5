"""A worker is killed once at every statement of its cycle: before it, after it, and after its commit.

One run does everything that claiming and settling can do: jobs of several groups and priorities, batches,
a failure, a child, and a slow job whose prefetched successors its second thread gives back.
"""

from __future__ import annotations

import collections

import pytest

from tests.ledger import Ledger
from tests.site_under_test import MakeSite, Site

pytestmark = pytest.mark.long  # every place there is; other tests here show the same faults once each

CYCLE = """
[pools.work]
handler = "jobs:cycle"
workers = 2
prefetch = PREFETCH
capabilities = ["gpu"]
retry = { max_attempts = 3, base = "10ms", jitter = 0 }
"""
HANDLERS = """
import time
from ledger import record

def cycle(payload, ctx):
    record("start", ctx)
    if payload == "flaky" and ctx.attempt == 1:
        raise ValueError("only the second attempt succeeds")
    if payload == "parent":
        ctx.enqueue("work", "child")
    if payload == "slow":
        time.sleep(0.1)
    record("end", ctx)
"""
STATEMENTS = {
    "sqlite": [
        *("register_worker", "groups", "claim_group", "peek_group", "claim_ids", "claim_first", "claim_one"),
        *("settle_done", "settle_plain", "settle", "insert_error", "insert_run", "insert_job"),
    ],
    "postgres": [
        "register_worker",
        "settle_and_claim",
        "settle",
        "insert_error",
        "insert_run",
        "insert_job",
        "announce",
    ],
}
SHORT_WAY = ("claim_first", "claim_one")  # to a single job of a single group


@pytest.mark.fault(2, 3, 4)
@pytest.mark.parametrize("when", [".before", "", ".committed"])
@pytest.mark.parametrize(
    ("make_site", "statement"),
    [(engine, statement) for engine, statements in STATEMENTS.items() for statement in statements],
    indirect=["make_site"],
)
def test_a_worker_killed_at_any_statement_loses_and_doubles_nothing(
    make_site: MakeSite, statement: str, when: str
) -> None:
    single = statement in SHORT_WAY
    site = make_site(CYCLE.replace("PREFETCH", "1" if single else "4"), HANDLERS)
    queue = site.queue
    urgent = queue.enqueue_many("work", [None, None], priority=5)
    flaky, parent, slow = (queue.enqueue("work", what) for what in ("flaky", "parent", "slow"))
    mixed = queue.enqueue_many("work", [None] * 4) + queue.enqueue_many(
        "work", [None] * 4, requires="" if single else "gpu"
    )
    point = f"worker:{statement}{when}=kill"
    assert site.start("--burst", wait=False, env=site.failpoints(point)).wait(40) == 0
    died = site.hit(point)

    children = [row[0] for row in site.rows("SELECT id FROM jobs WHERE payload = '\"child\"'")]
    assert len(children) == 1
    site.verdict(hit={flaky} | {job for job, pid in _runs(site) if pid == died}, others=children)
    # Only what was really running is charged: a slow job, when the thread beside it died with its process.
    open_runs = collections.Counter(job for job, pid in _runs(site, "start") if pid == died)
    open_runs -= collections.Counter(job for job, pid in _runs(site, "end") if pid == died)
    charged = {job: site.job(job).crashes for job in {*urgent, flaky, parent, slow, *mixed, *children}}
    assert {job for job, crashes in charged.items() if crashes} <= set(open_runs)
    kinds = [row[0] for row in site.rows("SELECT kind FROM job_errors WHERE job_id = ?", flaky)]
    assert kinds.count("exception") == 1
    assert all(site.job(job).attempts == 1 for job in charged if job != flaky)


def _runs(site: Site, what: str = "start") -> list[tuple[int, int]]:
    return [(line.job, line.pid) for line in Ledger(site.ledger, site.where).lines() if line.what == what]
