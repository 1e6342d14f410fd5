"""A change of many jobs is done to those that somebody was told of, whatever has changed meanwhile."""

from __future__ import annotations

import pytest

from supervisor.admin import state

from .conftest import Site
from .test_api_bulk import failed

JOBS = "/api/admin/jobs"
FAILED = {"filter": {"status": ["failed"]}}


def states(site: Site) -> dict[int, str]:
    return {row[0]: row[1].decode() for row in site.rows("SELECT id, status FROM jobs")}


@pytest.mark.fault(76)
def test_what_failed_after_the_question_is_left_alone(site: Site) -> None:
    first = failed(site, 3)
    asked = site.post(f"{JOBS}/retry", FAILED)
    assert (asked["matching"], asked["changed"]) == (3, 0)
    later = failed(site, 2)
    site.delete(f"{JOBS}/{first[0]}")

    done = site.post(f"{JOBS}/retry", FAILED | {"snapshot": asked["snapshot"]})

    assert done == {"matching": 3, "changed": 2, "skipped": 1, "duplicates": 0}
    assert states(site) == {**dict.fromkeys(first[1:], "pending"), **dict.fromkeys(later, "failed")}


@pytest.mark.fault(76)
def test_the_same_number_of_others_is_not_what_was_confirmed(site: Site) -> None:
    first = failed(site, 2)
    asked = site.post(f"{JOBS}/delete", FAILED)
    for job in first:
        site.delete(f"{JOBS}/{job}")
    others = failed(site, 2)

    done = site.post(f"{JOBS}/delete", FAILED | {"snapshot": asked["snapshot"]})

    assert done["changed"] == 0
    assert set(states(site)) == set(others)


def test_a_snapshot_counts_once_and_for_its_change_alone(site: Site) -> None:
    failed(site, 2)
    asked = site.post(f"{JOBS}/retry", FAILED)
    refused = site.post(f"{JOBS}/delete", FAILED | {"snapshot": asked["snapshot"]}, 409)
    assert refused["matching"] == 2
    assert site.post(f"{JOBS}/delete", FAILED | {"snapshot": refused["snapshot"]})["changed"] == 2
    assert site.post(f"{JOBS}/delete", FAILED | {"snapshot": refused["snapshot"]}, 409)["matching"] == 0


def test_an_old_snapshot_is_told_to_look_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(site, 1)
    asked = site.post(f"{JOBS}/retry", FAILED)
    monkeypatch.setattr(state, "KEPT", -1.0)

    assert site.post(f"{JOBS}/retry", FAILED | {"snapshot": asked["snapshot"]}, 409)["matching"] == 1
    assert set(states(site).values()) == {"failed"}
