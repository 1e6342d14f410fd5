"""What a worker tells of rows that the database refuses, and what handlers and programs know of their jobs."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite, wait_for

HANDLERS = """
def keep(payload, ctx):
    return {"meta": ctx.meta, "key": ctx.idempotency_key}
"""


@pytest.mark.fault(58)
def test_a_row_that_is_refused_is_logged_with_its_reason_and_the_others_run(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\n')
    bad, good = site.queue.enqueue("work"), site.queue.enqueue("work")
    site.refuse("UPDATE OF status", f"NEW.id = {bad} AND NEW.status = 'running'", "not this one")
    site.start()
    site.done(good)
    wait_for(lambda: site.event("row_refused", job=bad), "the warning")
    event = site.event("row_refused", job=bad)
    assert event["level"] == "warning"
    assert "not this one" in event["reason"]
    assert site.job(bad).status == "quarantined"


def test_a_handler_reads_the_meta_of_its_job(make_site: MakeSite) -> None:
    site = make_site('[pools.keep]\nhandler = "jobs:keep"\nworkers = 1\n', HANDLERS)
    jobs = [site.queue.enqueue("keep", meta=meta) for meta in ({"tags": ["nightly"]}, None)]
    site.start()
    results = [site.queue.wait(job, timeout=30).result for job in jobs]
    assert [result["meta"] for result in results] == [{"tags": ["nightly"]}, {}]
    assert len({result["key"] for result in results}) == 2
