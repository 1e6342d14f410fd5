"""`meta` over HTTP, and rows whose status is none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.web.api.conftest import Site

JOBS = "/api/admin/jobs"


def post(site: Site, **body: Any) -> Any:
    return site.client.ask("POST", JOBS, json=body)


def test_what_is_given_with_a_job_is_shown_with_it_and_found_by_its_tags(site: Site) -> None:
    meta = {"tags": ["nightly", "eu"], "trace": "4bf9"}
    job = post(site, type="tag", meta=meta).json()["id"]
    other = post(site, type="tag", meta={"tags": ["eu"]}).json()["id"]
    plain = post(site, type="tag").json()["id"]
    assert site.get(f"{JOBS}/{job}")["meta"] == meta
    assert site.get(f"{JOBS}/{plain}")["meta"] is None

    def listed(**params: Any) -> list[int]:
        return [found["id"] for found in site.get(JOBS, **params)["jobs"]]

    assert listed(tag="eu") == [other, job]
    assert listed(tag=["eu", "nightly"]) == [job]


@pytest.mark.parametrize("meta", [[1], "text", {"a": "x" * 20_000}])
def test_what_is_no_small_object_is_refused_and_nothing_enqueued(site: Site, meta: object) -> None:
    assert post(site, type="tag", meta=meta).status_code == 422
    assert site.get(JOBS)["jobs"] == []


def test_a_row_in_no_state_at_all_breaks_no_page(site: Site) -> None:
    job = post(site, type="tag").json()["id"]
    with closing(sqlite3.connect(site.path, isolation_level=None)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("UPDATE jobs SET status = 'lost'")
    assert [found["status"] for found in site.get(JOBS)["jobs"]] == ["quarantined"]
    assert "'lost'" in site.get(f"{JOBS}/{job}")["last_error"]
    for page in ("/api/admin/overview", "/api/admin/stats", "/api/admin/types"):
        site.get(page)
    for page in ("/", "/jobs", f"/jobs/{job}"):
        assert site.client.ask("GET", page).status_code == 200, page
