"""Changes of many jobs: asked about first, then done to no more than were expected."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.admin.api import jobs as bulk
from supervisor.domain.job import NewJob, Status
from tests.store.kit import NOW, T0
from tests.web.api.conftest import Site

JOBS = "/api/admin/jobs"


def failed(site: Site, count: int, type_: str = "tag") -> list[int]:
    ids = site.desk.producer.enqueue([NewJob(type_, "{}", scheduled_at=T0)] * count)
    for start in range(0, count, 500):
        site.desk.claim([type_], 500, owner=f"w{start}")
    site.rows(
        "UPDATE jobs SET claim_token = claim_token + 1, status = 'failed', locked_by = NULL WHERE type = ?", type_
    )
    return ids


def statuses(site: Site) -> list[str]:
    return [row[0].decode() for row in site.rows("SELECT status FROM jobs ORDER BY id")]


@pytest.mark.parametrize("change", ["retry", "cancel", "delete"])
def test_without_a_count_nothing_is_changed_and_the_answer_says_how_many_match(site: Site, change: str) -> None:
    failed(site, 3)
    site.desk.put("mail")
    before = site.everything

    answer = site.post(f"{JOBS}/{change}", {"filter": {}})

    assert answer.pop("snapshot")
    assert answer == {"matching": 1 if change == "cancel" else 3, "changed": 0, "skipped": 0, "duplicates": 0}
    assert site.everything == before


def test_what_matches_is_retried_and_nothing_else(site: Site) -> None:
    tag, mail = failed(site, 3), failed(site, 2, "mail")

    answer = site.post(f"{JOBS}/retry", {"filter": {"status": ["failed"], "type": ["tag"]}, "count": 3})

    assert answer == {"matching": 3, "changed": 3, "skipped": 0, "duplicates": 0}
    assert [site.desk.status(job_id) for job_id in tag + mail] == [Status.PENDING] * 3 + [Status.FAILED] * 2


def test_selected_jobs_are_changed_and_no_others(site: Site) -> None:
    first, second, third = failed(site, 3)
    waiting = site.desk.put("mail")

    counted = site.post(f"{JOBS}/delete", {"filter": {"id": [first, third, waiting, 4711]}})
    assert counted["matching"] == 2
    answer = site.post(f"{JOBS}/delete", {"filter": {}, "snapshot": counted["snapshot"]})

    assert answer["changed"] == 2
    assert [row[0] for row in site.rows("SELECT id FROM jobs ORDER BY id")] == [second, waiting]


def test_a_filter_may_say_everything_that_a_list_may(site: Site) -> None:
    job_id = site.desk.put(priority=3, requires="cpu", unique_key="k")
    site.desk.claim(capabilities="cpu")
    which = {
        "status": ["running"],
        "type": ["tag"],
        "error": "",
        "key": "k",
        "requires": "cpu",
        "priority": 3,
        "finished_after": None,
        "finished_before": None,
    }

    assert site.post(f"{JOBS}/cancel", {"filter": which, "count": 1})["changed"] == 1
    assert site.desk.job(job_id).cancel_requested_at is not None
    assert site.post(f"{JOBS}/cancel", {"filter": which | {"key": "x"}, "count": None})["matching"] == 0
    when = {"finished_before": "2031-01-01T00:00:00Z", "finished_after": NOW}
    assert site.post(f"{JOBS}/delete", {"filter": when, "count": 5})["matching"] == 0


def test_more_than_were_expected_are_refused_with_their_number_and_fewer_are_changed(site: Site) -> None:
    failed(site, 3)
    before = site.everything
    for change in ("retry", "delete"):
        refused = site.post(f"{JOBS}/{change}", {"filter": {"status": ["failed"]}, "count": 2}, 409)
        assert refused["matching"] == 3
    assert site.everything == before

    answer = site.post(f"{JOBS}/delete", {"filter": {"status": ["failed", "done"]}, "count": 5})
    assert answer == {"matching": 3, "changed": 3, "skipped": 0, "duplicates": 0}
    assert site.rows() == []


def test_jobs_whose_key_an_unfinished_job_has_are_counted_apart(site: Site) -> None:
    ids = []
    for key in ("a", "b"):
        ids.append(site.desk.put(unique_key=key))
        site.desk.finish(ids[-1], Status.FAILED)
    site.desk.put(unique_key="a")

    answer = site.post(f"{JOBS}/retry", {"filter": {}, "count": 2})

    assert answer == {"matching": 2, "changed": 1, "skipped": 0, "duplicates": 1}
    assert [site.desk.status(job_id) for job_id in ids] == [Status.FAILED, Status.PENDING]


def test_many_rounds_reach_every_job_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "ROUND", 70)
    failed(site, 500)

    answer = site.post(f"{JOBS}/retry", {"filter": {"status": ["failed"]}, "count": 500})
    assert answer == {"matching": 500, "changed": 500, "skipped": 0, "duplicates": 0}
    assert statuses(site) == ["pending"] * 500

    assert site.post(f"{JOBS}/cancel", {"filter": {}, "count": 500})["changed"] == 500
    assert site.post(f"{JOBS}/delete", {"filter": {}, "count": 500})["changed"] == 500
    assert site.rows() == []


def test_jobs_that_go_on_matching_are_met_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "ROUND", 3)
    ids = [site.desk.put() for _ in range(10)]
    site.desk.claim(want=10)

    answer = site.post(f"{JOBS}/cancel", {"filter": {}, "count": 10})
    assert answer == {"matching": 10, "changed": 10, "skipped": 0, "duplicates": 0}
    assert None not in [site.desk.job(job_id).cancel_requested_at for job_id in ids]


def test_cancelled_jobs_are_retried_only_if_they_are_meant(site: Site) -> None:
    job_id = site.desk.put()
    site.desk.operations.actions.cancel(job_id, NOW)

    assert site.post(f"{JOBS}/retry", {"filter": {}, "count": 9})["matching"] == 0
    assert site.post(f"{JOBS}/retry", {"filter": {"status": ["cancelled"]}, "count": 1})["changed"] == 1


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ("retry", {"filter": {"status": ["done"]}, "count": 9}),
        ("retry", {"filter": {"status": ["failed", "running"]}, "count": 9}),
        ("cancel", {"filter": {"status": ["failed"]}, "count": 9}),
        ("delete", {"filter": {"status": ["pending"]}, "count": 9}),
        ("delete", {"filter": {"status": ["everything"]}, "count": 9}),
        ("delete", {"filter": {"status": "failed"}, "count": 9}),
        ("delete", {"filter": {"tpye": ["tag"]}, "count": 9}),
        ("delete", {"filter": {"type": [""]}, "count": 9}),
        ("delete", {"filter": {"error": None}, "count": 9}),
        ("delete", {"filter": {}, "count": -1}),
        ("delete", {"filter": {}, "count": True}),
        ("delete", {"filter": {}, "count": "9"}),
        ("delete", {"filter": {}, "count": 9, "force": True}),
        ("delete", {"filter": {"priority": 0.5}, "count": 9}),
        ("delete", {"filter": {"finished_before": True}, "count": 9}),
        ("delete", {"count": 9}),
        ("delete", {"filter": None, "count": 9}),
        ("delete", []),
    ],
)
def test_a_change_that_cannot_be_meant_changes_nothing(site: Site, change: str, body: Any) -> None:
    failed(site, 2)
    site.desk.finish(site.desk.put("mail"))
    site.desk.put("mail")
    before = site.everything

    site.post(f"{JOBS}/{change}", body, 422)

    assert site.everything == before
