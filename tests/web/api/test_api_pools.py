"""Pools, types, workers and numbers over HTTP."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from supervisor.admin.answers import refusal_of
from supervisor.admin.api import overview
from supervisor.domain.errors import EnqueueUncertain, StoreError, StoreGone, StoreMoved, StoreUnavailable
from supervisor.domain.job import Status
from supervisor.domain.text import json_safe
from supervisor.ops import commands
from supervisor.ops.status import gather
from tests.store.kit import NOW, T0, worker_record
from tests.web.api.conftest import BULLETIN, POOL, Site, supervise

API = "/api/admin"


def controls(site: Site) -> tuple[set[str], dict[str, int]]:
    found = site.desk.operations.controls.current()
    return set(found.paused), dict(found.sizes)


def test_a_pool_is_scaled_and_paused_with_all_its_types_and_given_back(site: Site) -> None:
    shown = {"name": "tag", "types": ["tag", "caption"]}
    assert site.put(f"{API}/pools/tag", {"workers": 3}) == shown | {"workers": 3, "paused": []}
    assert controls(site) == (set(), {"tag": 3})
    assert site.put(f"{API}/pools/tag", {"workers": 0})["workers"] == 0

    assert site.put(f"{API}/pools/tag", {"paused": True}) == shown | {"workers": 0, "paused": ["tag", "caption"]}
    assert controls(site) == ({"tag", "caption"}, {"tag": 0})
    [pool] = [pool for pool in site.get(f"{API}/pools")["pools"] if pool["name"] == "tag"]
    assert pool["paused"] == ["tag", "caption"]

    given_back = {"workers": None, "paused": False}
    assert site.put(f"{API}/pools/tag", given_back) == shown | {"workers": None, "paused": []}
    assert controls(site) == (set(), {})


def test_a_type_is_paused_and_goes_on(site: Site) -> None:
    answers = [
        site.put(f"{API}/types/new.type-1", {"paused": paused, "force": True}) for paused in (True, True, False, False)
    ]

    assert [answer["changed"] for answer in answers] == [True, False, True, False]
    assert [answer["paused"] for answer in answers] == [True, True, False, False]
    assert controls(site) == (set(), {})


def test_a_pool_is_scaled_on_one_host(site: Site) -> None:
    here = socket.gethostname()
    changed = site.put(f"{API}/pools/tag", {"workers": 3, "host": here})
    assert changed == {"name": "tag", "workers": 3, "types": ["tag", "caption"], "paused": [], "host": here}
    assert controls(site) == (set(), {})

    assert site.put(f"{API}/pools/tag", {"paused": True})["paused"] == ["tag", "caption"]
    assert site.put(f"{API}/pools/tag", {"paused": False, "workers": None})["paused"] == []
    assert site.desk.operations.controls.current().on_hosts == ()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("types/tag", {"paused": True, "host": "here"}, 422),
        ("pools/tag", {"workers": 1, "host": "nowhere"}, 404),
        ("pools/tag", {"workers": 1, "host": "no where"}, 422),
        ("pools/tag", {"paused": True, "workers": 1, "host": "nowhere"}, 422),
        ("pools/tag", {"host": "nowhere"}, 422),
        ("pools/nope", {"workers": 1}, 404),
        ("pools/nope", {"paused": True}, 404),
        ("pools/nope", {"workers": 1, "paused": True}, 404),
        ("pools/%3Cimg%20src=x%3E", {"workers": 1}, 404),
        ("pools/tag", {}, 422),
        ("pools/tag", {"workers": -1}, 422),
        ("pools/tag", {"workers": 100_000}, 422),
        ("pools/tag", {"workers": "3"}, 422),
        ("pools/tag", {"workers": True}, 422),
        ("pools/tag", {"workers": 1.5}, 422),
        ("pools/tag", {"paused": None}, 422),
        ("pools/tag", {"paused": "yes"}, 422),
        ("pools/tag", {"paused": True, "workers": -1}, 422),
        ("pools/tag", {"workers": 3, "wrokers": 4}, 422),
        ("pools/tag", [], 422),
        ("types/T%40g", {"paused": True}, 422),
        ("types/" + "a" * 101, {"paused": True}, 422),
        ("types/tag", {}, 422),
        ("types/tag", {"paused": 1}, 422),
        ("types/tag", {"paused": True, "for": "1h"}, 422),
    ],
)
def test_a_change_that_cannot_be_meant_changes_nothing(site: Site, path: str, body: Any, status: int) -> None:
    site.desk.operations.controls.scale("tag", 2, NOW)
    before = site.everything

    site.put(f"{API}/{path}", body, status)  # which is JSON: a name in the address stays text

    assert site.everything == before


def test_without_a_supervisor_a_configured_pool_can_be_scaled_but_nobody_knows_its_types(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(supervised=False)

    assert site.put(f"{API}/pools/tag", {"workers": 3})["types"] == []
    before = site.everything
    site.put(f"{API}/pools/tag", {"paused": True, "workers": 4}, 404)
    assert site.everything == before


def test_the_overview_is_what_status_shows(site: Site) -> None:
    site.desk.put()
    shown = site.get(f"{API}/overview")

    gathered = json.loads(json.dumps(json_safe(gather(site.engine, site.desk.operations, shown["time"]).as_json())))
    assert shown == gathered
    assert site.get(f"{API}/pools")["pools"] == shown["pools"]
    assert site.get(f"{API}/types") == {"types": shown["types"], "unhandled": shown["unhandled"]}
    assert site.get(f"{API}/workers") == {"workers": shown["workers"]}
    assert site.get(f"{API}/schedules") == {"schedules": shown["schedules"]}


def test_what_waits_is_counted_by_type_whether_or_not_a_pool_may_take_it(site: Site) -> None:
    now = time.time()
    site.desk.put("tag", at=now - 100)
    site.desk.put("tag", at=now - 50, requires="gpu", priority=9)
    site.desk.put("tag", at=now + 1000)
    site.desk.put("strange", at=now - 500)
    site.desk.operations.controls.pause("tag", now)

    stats = site.get(f"{API}/stats")

    types = {type_["type"]: type_ for type_ in stats["types"]}
    assert (stats["pending"], stats["due"]) == (4, 3)
    assert (types["tag"]["due"], types["strange"]["due"]) == (2, 1)
    assert 100 <= types["tag"]["oldest_age"] < 200
    assert 500 <= stats["oldest_age"] < 600
    assert site.get(f"{API}/types")["unhandled"] == ["strange"]


def test_failures_are_grouped_since_a_day_ago_or_a_time(site: Site) -> None:
    now = time.time()
    for at in (now - 90_000, now - 100, now - 50):
        site.desk.finish(site.desk.put(at=T0), Status.FAILED, at=at)

    [group] = site.get(f"{API}/failures")["groups"]
    assert (group["type"], group["count"], group["jobs"], group["last_job"]) == ("tag", 2, 2, 3)
    assert site.get(f"{API}/failures", since=0)["groups"][0]["count"] == 3
    assert site.get(f"{API}/failures", since=now)["groups"] == []
    for wrong in ({"since": "lately"}, {"limit": 0}, {"until": 5}):
        site.get(f"{API}/failures", 422, **wrong)


def test_the_history_is_answered_as_it_is_kept(site: Site) -> None:
    kept = [asdict(minute) for minute in site.desk.operations.history.minutes(0.0)]

    assert site.get(f"{API}/history", since=0)["minutes"] == kept
    site.get(f"{API}/history", 422, since="x")


def test_the_history_is_answered_by_the_hour_and_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = time.time() // 3600 * 3600
    for back in (0, 60, 120, 3600, 3660, 30 * 3600):
        site.rows("INSERT INTO job_history VALUES (?, 'tag', 1, 2, ?, 0, 0.5, 0.25)", hour - back, back)

    hours = site.get(f"{API}/history/hours", since=hour - 2 * 3600)
    assert [(row["at"], row["done"], row["waiting"]) for row in hours["hours"]] == [
        (hour - 7200, 1, 3660),
        (hour - 3600, 3, 3600),
        (hour, 1, 0),
    ]
    assert (hours["since"], hours["next"]) == (hour - 7200, None)
    assert [row["at"] for row in site.get(f"{API}/history/hours")["hours"]] == [hour - 7200, hour - 3600, hour]
    assert site.get(f"{API}/history/hours", since=0, until=hour - 3600)["hours"] == [
        {"at": hour - 30 * 3600, "type": "tag", "done": 1, "failed": 2, "waiting": 30 * 3600, "running": 0,
         "run_seconds": 0.5, "wait_seconds": 0.25},
        hours["hours"][0],
    ]  # fmt: skip
    minutes = site.get(f"{API}/history", since=hour - 3660, until=hour)["minutes"]
    assert [row["at"] for row in minutes] == [hour - 3660, hour - 3600, hour - 120, hour - 60]

    monkeypatch.setattr(overview, "MOST_ROWS", 2)
    part = site.get(f"{API}/history", since=hour - 3660)
    assert [row["at"] for row in part["minutes"]] == [hour - 3660, hour - 3600]
    assert part["next"] == hour - 120
    rest = site.get(f"{API}/history", since=part["next"])
    assert ([row["at"] for row in rest["minutes"]], rest["next"]) == ([hour - 120, hour - 60], hour)
    for wrong in ({"until": "x"}, {"step": 60}):
        site.get(f"{API}/history/hours", 422, **wrong)


# Health


def test_whoever_lives_says_so_without_a_database(site: Site) -> None:
    site.path.write_bytes(b"broken")
    for name in ("jobs.db-wal", "jobs.db-shm"):
        site.path.with_name(name).unlink()

    assert site.get("/healthz")["status"] == "alive"
    site.get("/readyz", 503)
    site.get(f"{API}/jobs", 503)
    site.post(f"{API}/jobs", {"type": "tag"}, 503)


BROKEN = [
    ("stopping", BULLETIN | {"stopping": "it was told to"}, "stopping"),
    ("trouble", BULLETIN | {"trouble": "the disk is full"}, "the disk is full"),
    ("pool", BULLETIN | {"pools": {"tag": POOL | {"problem": "ImportError: no module x", "broken": True}}}, "module x"),
    ("recovery", BULLETIN | {"pools": {"tag": POOL | {"why": "starting"}}}, "recovery"),
]


@pytest.mark.parametrize(("supervisor_status", "word"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_keeps_jobs_from_running_is_said(
    make_site: Callable[..., Site], supervisor_status: Any, word: str
) -> None:
    site = make_site(supervisor_status=supervisor_status)

    refused = site.get("/readyz", 503)
    assert word in refused["error"]
    assert len(refused["reasons"]) == 1


@pytest.mark.parametrize(("own", "ready"), [("", False), ("s1", False), ("another", True)])
def test_a_drained_host_is_not_ready_and_does_not_make_another_one_unready(
    make_site: Callable[..., Site], own: str, ready: bool
) -> None:
    site = make_site(own=own)
    assert site.get("/readyz") == {"ready": True}
    site.state.watch._seen = None
    site.desk.operations.controls.drain(socket.gethostname(), 1.0)
    if ready:
        assert site.get("/readyz") == {"ready": True}
    else:
        assert "its host is drained" in site.get("/readyz", 503)["error"]


def test_nothing_is_ready_without_a_supervisor(make_site: Callable[..., Site]) -> None:
    assert make_site(supervised=False).get("/readyz", 503)["reasons"] == ["no supervisor is running"]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StoreUnavailable("its disk is full"), True),
        (EnqueueUncertain("it may be stored"), False),
        (StoreGone("it was replaced", replaced=True), False),
        (StoreMoved("here", "there"), False),
    ],
)
def test_another_try_is_advised_only_where_it_may_help(error: StoreError, *, again: bool) -> None:
    refused = refusal_of(Request({"type": "http"}), error).response()
    assert (refused.status_code, "retry-after" in refused.headers) == (503, again)


def test_a_database_that_somebody_else_holds_is_busy_and_worth_another_try(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.sqlite.connection.BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr("supervisor.store.sqlite.writelock.PATIENCE", 0.05, raising=False)
    job_id = site.desk.put()
    holder = sqlite3.connect(site.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        for method, path in (("POST", f"{API}/jobs/{job_id}/cancel"), ("GET", "/readyz")):
            refused = site.client.ask(method, path)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True), refused.text
        assert site.get(f"{API}/jobs/{job_id}")["status"] == "pending"
    finally:
        holder.close()


# What every answer has in common


@pytest.mark.parametrize("path", ["/nothing", "/api/admin", "/api/admin/jobs/", "/api/admin/jobs/1/explode", "/docs"])
def test_an_unknown_address_is_told_like_any_other_error(site: Site, path: str) -> None:
    assert path in site.get(path, 404)["error"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/jobs", "GET, POST"),
        ("PUT", "/jobs/5", "DELETE, GET"),
        ("GET", "/jobs/retry", "POST"),
        ("DELETE", "/jobs/delete", "POST"),
        ("GET", "/types/App/Jobs:Send", "PUT"),
    ],
)
def test_a_method_that_is_not_there_is_told_with_those_that_are(
    site: Site, method: str, path: str, allowed: str
) -> None:
    refused = site.client.ask(method, f"{API}{path}")

    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    assert method in refused.json()["error"]


def test_a_type_that_nobody_has_is_not_paused_by_a_slip(site: Site) -> None:
    answer = site.put(f"{API}/types/tagg", {"paused": True}, 404)
    assert "did you mean tag?" in answer["error"]
    assert controls(site) == (set(), {})
    assert site.put(f"{API}/types/tagg", {"paused": True, "force": True})["changed"]


def test_a_schedule_is_paused_resumed_and_run(site: Site) -> None:
    site.desk.maintenance.schedules.plan("nightly", "[]", 4e9, type="tag", payload='{"all":true}')

    path = "/api/admin/schedules/nightly"
    assert site.put(path, {"paused": True}) == {"name": "nightly", "paused": True, "changed": True}
    assert site.put(path, {"paused": True})["changed"] is False
    site.state.watch._seen = None
    [shown] = site.get("/api/admin/schedules")["schedules"]
    assert shown["paused_at"] is not None
    made = site.post(f"{path}/run", status=201)
    assert site.get(f"/api/admin/jobs/{made['id']}")["type"] == "tag"
    assert site.put(path, {"paused": False})["changed"] is True
    assert site.put(path, {"paused": False})["changed"] is False


def test_a_schedule_is_made_changed_and_removed(site: Site) -> None:
    path = "/api/admin/schedules/made"
    assert site.post(path, {"type": "tag", "every": "1h"}, status=201)["changed"] is True
    assert "already" in site.post(path, {"type": "tag", "every": "1h"}, status=409)["error"]
    assert site.put(path, {"priority": 5, "paused": True}) == {"name": "made", "paused": True, "changed": True}
    assert site.put(path, {"every": "never"}, 422)["field"] == "every"
    site.state.watch._seen = None
    [shown] = site.get("/api/admin/schedules")["schedules"]
    assert (shown["run_time"], shown["silent"]) == (True, 0.0)
    assert "made at run time" in site.client.ask("GET", "/schedules").text
    [row] = site.desk.operations.schedules.planned()
    assert (row.priority, row.type, row.timing) == (5, "tag", '[null, 3600.0, "UTC"]')
    assert site.delete(path)["changed"] is True
    assert site.delete(path, 404)
    assert site.put(path, {"priority": 5}, 404)
    site.desk.maintenance.schedules.plan("nightly", "[]", 4e9, type="tag")
    for refused in (site.put(f"{path[:-4]}nightly", {"priority": 5}, 409), site.delete(f"{path[:-4]}nightly", 409)):
        assert "configuration file" in refused["error"]


def test_an_unknown_schedule_is_not_found_and_one_that_nobody_told_of_is_not_run(site: Site) -> None:
    site.desk.maintenance.schedules.plan("old", "[]", 4e9)
    before = site.everything

    assert "the schedules are old" in site.put("/api/admin/schedules/new", {"paused": True}, 404)["error"]
    assert site.post("/api/admin/schedules/new/run", status=404)
    assert "known only when" in site.post("/api/admin/schedules/old/run", status=409)["error"]
    assert site.put("/api/admin/schedules/old", {"paused": "yes"}, 422)["field"] == "paused"
    assert site.everything == before


def test_pages_say_on_which_host_a_pool_and_a_worker_are(make_site: Callable[..., Site], tmp_path: Path) -> None:
    """In containers, supervisors have the same pid."""
    site = make_site()
    board = supervise(site.engine, site.desk, tmp_path, BULLETIN, "s2", host="beta")
    slot = board.slot(1)
    slot.assign("w-beta", "tag-1")
    site.desk.claims.register(worker_record("w-beta", "s2", name="tag-1"))
    job = site.desk.put()
    site.rows("UPDATE jobs SET status = 'running', locked_by = 'w-beta', claim_token = 1, lock_expires_at = 9e9")
    overview = site.client.ask("GET", "/").text
    ids = re.findall(r'id="(pool-[^"]*)"', overview)
    assert len(ids) == len(set(ids)) == 2 * len(BULLETIN["pools"])
    assert '<span class="soft">on beta</span>' in overview
    assert "On each host, the pool keeps this many workers" in overview
    found = site.get(f"/api/admin/jobs/{job}")
    assert (found["worker"], found["host"]) == ("tag-1", "beta")


def test_the_outcome_of_a_reload_is_told_of_each_host_also_with_the_same_pid(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    accepted = {"number": 1, "state": "accepted", "problems": [], "pools": {}}
    site = make_site(supervisor_status=BULLETIN | {"reload": accepted})
    refused = {"number": 1, "state": "refused", "problems": ["no such file"], "pools": {}}
    supervise(site.engine, site.desk, tmp_path, BULLETIN | {"reload": refused}, "s2", host="beta", config="/nowhere")
    records = site.desk.operations.registry.supervisors()
    site.desk.operations.controls.request_reload(NOW)
    outcomes = commands.await_reload(site.desk.operations, records, 5.0)
    assert {key: outcome["state"] for key, outcome in outcomes.items()} == {"s1": "accepted", "s2": "refused"}
