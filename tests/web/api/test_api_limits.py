"""Limits of types over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from supervisor.domain.limits import Limits, interval_of
from tests.store.kit import NOW
from tests.web.api.conftest import Site

API = "/api/admin/limits"


def limits(site: Site) -> list[Any]:
    return [(view.type, view.limits, view.chosen) for view in site.desk.operations.gates.limits()]


def test_limits_are_set_one_by_one_listed_and_given_back(site: Site) -> None:
    answer = site.put(f"{API}/tag", {"max_running": 3, "breaker": {"failures": 2}, "rate": "50/s"})
    shown = {"max_running": 3, "rate": "50/s", "breaker": {"failures": 2, "pause": "60s"}}
    assert answer == {"type": "tag", "limits": shown, "chosen": True}
    assert site.get(API) == {"limits": [answer]}
    assert site.put(f"{API}/tag", {"breaker": None})["limits"] == {"max_running": 3, "rate": "50/s"}
    assert limits(site) == [("tag", Limits(3, interval=interval_of("50/s")), True)]
    [tag] = [view for view in site.get("/api/admin/types")["types"] if view["type"] == "tag"]
    assert (tag["limits"], tag["limits_chosen"]) == ({"max_running": 3, "rate": "50/s"}, True)

    assert site.delete(f"{API}/tag") == {"type": "tag", "limits": {}, "chosen": False}
    assert limits(site) == []


def test_held_jobs_are_counted_by_type(site: Site) -> None:
    site.put(f"{API}/tag", {"max_running": 1})
    for _ in range(3):
        site.desk.put("tag")
    site.rows("INSERT INTO jobs (type, status, hold) VALUES ('tag', 'held', 'after')")
    metrics = site.client.ask("GET", "/metrics").text
    assert 'supervisor_jobs{status="held",type="tag"} 3.0' in metrics
    gates = re.findall(r'supervisor_jobs_held{gate="(.*)",type="tag"} (.*)', metrics)
    assert gates == [("after", "1.0"), ("due", "0.0"), ("key", "0.0"), ("type", "2.0")]
    [tag] = [view for view in site.get("/api/admin/types")["types"] if view["type"] == "tag"]
    assert tag["held"] == {"after": 1, "due": 0, "key": 0, "type": 2}
    assert "3 held</a> (1 after, 2 type)" in site.client.ask("GET", "/").text


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("nope", {"rate": "5/s"}, 404),
        ("T%40g", {"rate": "5/s"}, 422),
        ("tag", {}, 422),
        ("tag", {"force": True}, 422),
        ("tag", {"rate": "fast"}, 422),
        ("tag", {"rate": 5}, 422),
        ("tag", {"max_running": 0}, 422),
        ("tag", {"max_running": True}, 422),
        ("tag", {"burst": 3}, 422),
        ("tag", {"age_boost": "soon"}, 422),
        ("tag", {"on_conflict": "cancel"}, 422),
        ("tag", {"max_runing": 3}, 422),
        ("tag", {"fair": True, "max_running": None}, 422),
        ("tag", {"breaker": {"failures": 0}}, 422),
        ("tag", [], 422),
    ],
)
def test_a_limit_that_cannot_be_meant_changes_nothing(site: Site, path: str, body: Any, status: int) -> None:
    site.desk.operations.gates.choose("tag", Limits(7), NOW)
    before = limits(site)
    refused = site.put(f"{API}/{path}", body, status)
    assert "\n" not in refused["error"]
    if body and path == "tag" and body != {"force": True}:
        assert refused["field"].split(".")[0] in {*body, "fair"}
    assert limits(site) == before


def test_limits_of_an_unknown_type_are_not_reset(site: Site) -> None:
    assert site.delete(f"{API}/nope", 404)["error"].startswith("no pool takes the type 'nope', and no job has it")
    assert site.delete(f"{API}/tag") == {"type": "tag", "limits": {}, "chosen": False}
