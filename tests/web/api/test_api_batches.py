"""Batches over HTTP."""

from __future__ import annotations

import pytest

from supervisor.domain.job import Status
from tests.web.api.conftest import Site

API = "/api/admin/batches"


def test_a_batch_is_shown_listed_closed_and_its_jobs_are_found_and_cancelled(site: Site) -> None:
    batch = site.desk.operations.batches.open("mail", "{}")
    ids = [site.desk.put("tag", extra={"batch": batch}) for _ in range(3)]
    other = site.desk.put("tag")
    seen = site.get(f"{API}/{batch}")
    assert (seen["state"], seen["counts"]["pending"], seen["on_done"], seen["callback"]) == ("open", 3, "mail", None)
    assert site.get(API) == {"batches": [seen]}
    assert [job["id"] for job in site.get("/api/admin/jobs", batch=batch)["jobs"]] == ids[::-1]

    assert site.post(f"{API}/{batch}/close")["state"] == "closed"
    changed = site.post("/api/admin/jobs/cancel", {"filter": {"batch": batch}, "count": 3})
    assert changed["changed"] == 3
    ended = site.get(f"{API}/{batch}")
    assert (ended["state"], ended["counts"]["cancelled"]) == ("ended", 3)
    assert site.desk.job(ended["callback"]).type == "mail"
    assert site.desk.status(other) is Status.PENDING
    assert site.get(API) == {"batches": []}


@pytest.mark.parametrize(("number", "status"), [(7, 404), (0, 422), ("x", 422), (2**63, 422)])
def test_a_batch_that_is_not_there_is_told_in_a_sentence(site: Site, number: object, status: int) -> None:
    assert site.get(f"{API}/{number}", status)["error"]
    assert site.post(f"{API}/{number}/close", None, status)["error"]
