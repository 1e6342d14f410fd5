"""Batches of one key, within a budget, and of a size that the worker finds itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
POOL = """
[pools.batch]
handler = "jobs:Batch"
workers = 1
batch_size = 16
batch_wait = "50ms"
max_crashes = 2
retry = { max_attempts = 1 }
"""
HANDLERS = """
import json, os, time
from ledger import record

def note(payloads):
    with open("batches", "a") as batches:
        batches.write(json.dumps(payloads) + "\\n")

class Batch:
    def handle_batch(self, payloads, ctx):
        for job in ctx.jobs:
            record("start", job)
        note(payloads)
        for job in ctx.jobs:
            record("end", job)
        return [os.getpid()] * len(payloads)

class OutOfMemoryError(Exception):
    pass

class Limited(Batch):
    def handle_batch(self, payloads, ctx):
        time.sleep(0.03)  # much more than the rest, so that a busy machine does not hide the gain of a larger batch
        if len(payloads) >= 12 or any(payload.get("large") for payload in payloads):
            with open("failures", "a") as failures:
                failures.write(f"{len(payloads)}\\n")
            how = ctx.options["how"]
            if how == "host":
                raise MemoryError
            if how == "device":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            raise OutOfMemoryError("too many")
        return super().handle_batch(payloads, ctx)

class FixedCost:
    def handle_batch(self, payloads, ctx):  # keeps no ledger: two syncs a job would be a cost of their own
        time.sleep(0.05)
        note(payloads)
        return [os.getpid()] * len(payloads)
"""


def batches(site: Site) -> list[list[dict[str, Any]]]:
    return [json.loads(line) for line in (site.folder / "batches").read_text().splitlines()]


def with_pool(make_site: MakeSite, *lines: str, handler: str = "Batch", workers: int = 1) -> Site:
    """Only the plain handler has batches of a fixed size."""
    pool = POOL.replace("jobs:Batch", f"jobs:{handler}").replace("workers = 1", f"workers = {workers}")
    if handler != "Batch":
        pool = pool.replace("batch_size = 16", 'batch_size = "auto"')
    return make_site(pool + "\n".join(lines) + "\n", HANDLERS)


def nobody_charged(site: Site) -> bool:
    charged = site.rows("SELECT count(*) FROM jobs WHERE type = 'batch' AND (attempts <> 1 OR crashes <> 0)")
    return charged == [(0,)] and site.rows("SELECT count(*) FROM job_errors") == [(0,)]


@pytest.mark.parametrize("workers", [1, 3])
def test_jobs_with_different_keys_do_not_meet_and_a_rare_key_does_not_wait(make_site: MakeSite, workers: int) -> None:
    site = with_pool(make_site, 'batch_key = "options.model"', workers=workers)
    models = ["small", "large", None]
    site.queue.enqueue_many("batch", [{"options": {"model": "rare" if n == 40 else models[n % 3]}} for n in range(240)])
    site.start()
    site.verdict()
    ran = [[payload["options"]["model"] for payload in batch] for batch in batches(site)]
    assert all(len(set(batch)) == 1 for batch in ran)
    assert nobody_charged(site)
    assert max(len(batch) for batch in ran) == 16
    if workers == 1:  # else they run in any order
        before = ran[: ran.index(["rare"])]
        assert sum(map(len, before)) <= 40 + 16 * 3  # of each other key, a batch that has been begun


@pytest.mark.fault(100)
def test_a_batch_stays_within_its_budget_and_what_is_above_it_runs_alone(make_site: MakeSite) -> None:
    site = with_pool(make_site, 'batch_cost = "pixels"', "batch_budget = 10")
    costs: list[Any] = [3, 4, 3, 50, 1, 9, 9, "many", 2, 2]
    site.queue.enqueue_many("batch", [{"pixels": cost} for cost in costs])
    site.start()
    site.verdict()
    ran = [[payload["pixels"] for payload in batch] for batch in batches(site)]
    assert all(len(batch) == 1 or sum(batch) <= 10 for batch in ran)
    assert ran[0] == [3, 4, 3]
    assert [50] in ran
    assert ["many"] in ran


@pytest.mark.fault(101)
@pytest.mark.parametrize("how", ["host", "device", "own class"])
def test_batches_that_run_out_of_memory_become_smaller_and_no_job_fails(make_site: MakeSite, how: str) -> None:
    site = with_pool(make_site, f'options = {{ how = "{how}" }}', handler="Limited")
    jobs = site.queue.enqueue_many("batch", [{}] * 600)
    site.start()
    site.verdict(hit=jobs)
    assert nobody_charged(site)
    failures = (site.folder / "failures").read_text().split()
    assert 1 <= len(failures) <= 6
    assert {site.job(job).result for job in jobs} == {site.job(jobs[0]).result}  # one worker ran them all
    sizes = [len(batch) for batch in batches(site)]
    assert max(sizes) in (10, 11)
    assert not site.event("worker_died")


@pytest.mark.fault(101)
def test_a_job_that_alone_is_too_large_fails_alone(make_site: MakeSite) -> None:
    site = with_pool(make_site, 'options = { how = "device" }', handler="Limited")
    jobs = site.queue.enqueue_many("batch", [{"large": True} if n == 60 else {} for n in range(120)])
    site.start()
    site.verdict(hit=jobs, failed=[jobs[60]])
    assert set(site.rows("SELECT job_id FROM job_errors")) == {(jobs[60],)}


def test_a_worker_finds_the_size_of_its_batches_itself(make_site: MakeSite) -> None:
    site = with_pool(make_site, 'max_batch_size = 64\nlatency_target = "2s"', handler="FixedCost")
    site.queue.enqueue_many("batch", [{}] * 2500)
    site.start()
    wait_for(lambda: site.count("done") == 2500)
    sizes = [len(batch) for batch in batches(site)]
    assert sizes[0] == 1
    assert sorted(sizes)[-10] >= 40
    assert nobody_charged(site)
