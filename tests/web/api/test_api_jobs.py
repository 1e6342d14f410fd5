"""Jobs over HTTP: what is asked for is done, what is refused has changed nothing."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.admin.api.models import JobDocument, JobPage
from supervisor.domain.job import Status
from tests.store.kit import NOW
from tests.web.api.conftest import Site

JOBS = "/api/admin/jobs"
SECRET = "4111-1111-1111-1111"


# Looking


def test_a_list_is_a_page_of_what_the_filters_mean(site: Site) -> None:
    ids = [site.desk.put(type_) for type_ in ("a", "b", "c", "a")]
    for job_id in ids:
        site.desk.finish(job_id, Status.FAILED)
    waiting = site.desk.put("a", priority=7, unique_key="k", requires="cpu gpu")

    def listed(**params: Any) -> list[int]:
        return [job["id"] for job in site.get(JOBS, **params)["jobs"]]

    assert listed() == [waiting, *ids[::-1]]
    assert listed(status="failed") == ids[::-1]
    assert listed(status=["failed", "pending"], type=["a", "b"]) == [waiting, ids[3], ids[1], ids[0]]
    assert listed(error="NO SUCH") == ids[::-1]
    assert listed(key="k") == listed(requires="gpu") == listed(priority=7) == [waiting]
    assert listed(status="failed", type="c", error="picture", priority=0, finished_after=NOW) == [ids[2]]
    assert listed(finished_before=NOW) == []
    iso = datetime.datetime.fromtimestamp(NOW, datetime.UTC).isoformat()
    assert listed(finished_after=iso) == ids[::-1]


def test_why_a_job_does_not_run(site: Site) -> None:
    waiting, other = site.desk.put("tag"), site.desk.put("tag")
    site.put("/api/admin/types/tag", {"paused": True})

    paused = {"code": "paused", "text": "the type tag is paused", "advice": "`supervisor resume tag` resumes it"}
    assert site.get(f"{JOBS}/{waiting}/why") == {
        "id": waiting, "type": "tag", "status": "pending", "reasons": [paused | {"until": None, "jobs": []}],
    }  # fmt: skip
    site.put("/api/admin/types/tag", {"paused": False})
    site.rows("INSERT INTO job_limits (type, max_running) VALUES ('tag', 0)")
    site.rows("UPDATE jobs SET status = 'held', hold = 'type' WHERE id = ?", other)
    assert site.get(f"{JOBS}/{other}/why")["reasons"][0]["code"] == "held_type"
    assert site.get(JOBS, status="held")["jobs"][0]["id"] == other
    assert site.post(f"{JOBS}/{other}/run-now") == {"id": other, "status": "pending"}
    assert site.get(f"{JOBS}/{other}/why")["reasons"][0]["code"] == "starting"
    site.rows("UPDATE jobs SET status = 'cancelled' WHERE id = ?", other)
    said = f"job {other} is cancelled; only a job that waits can be run now; retry it"
    assert site.post(f"{JOBS}/{other}/run-now", None, 409)["error"] == said
    assert site.post(f"{JOBS}/4711/run-now", None, 404)["error"] == "no job has the id 4711"
    assert site.get(f"{JOBS}/4711/why", 404)["error"] == "no job has the id 4711"


def test_pages_follow_each_other_by_next(site: Site) -> None:
    ids = [site.desk.put() for _ in range(5)]

    first = site.get(JOBS, limit=2)
    second = site.get(JOBS, limit=2, before=first["next"])
    third = site.get(JOBS, limit=2, before=second["next"])

    assert [job["id"] for page in (first, second, third) for job in page["jobs"]] == ids[::-1]
    assert third["next"] is None


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"status": "broken"}, "status.0"),
        ({"type": "Bad Type"}, "type.0"),
        ({"limit": "0"}, "limit"),
        ({"limit": "501"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"before": "0"}, "before"),
        ({"before": str(2**63)}, "before"),
        ({"before": "9" * 5000}, "before"),
        ({"priority": "101"}, "priority"),
        ({"finished_after": "yesterday"}, "finished_after"),
        ({"finished_after": "nan"}, "finished_after"),
        ({"finished_after": "1e400"}, "finished_after"),
        ({"finished_before": "2026-11-21T10:00:00"}, "finished_before"),
        ({"finished_before": str(NOW * 1e6)}, "finished_before"),
        ({"sort": "payload"}, "sort"),
        ({"sort": "id", "order": "up"}, "order"),
        ({"id": "0"}, "id.0"),
        ({"newest": "1"}, "newest"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_by_the_name_of_its_field(
    site: Site, params: dict[str, str], field: str
) -> None:
    assert site.get(JOBS, 422, **params)["field"] == field


@pytest.mark.parametrize("path", ["jobs/1", "jobs/1/why", "limits", "batches", "batches/1", "stats", "pools", "events"])
def test_a_parameter_of_no_meaning_is_refused(site: Site, path: str) -> None:
    site.desk.put("tag")
    refused = site.get(f"/api/admin/{path}", 422, pretty="1")
    assert refused == {"error": "pretty: unknown field", "field": "pretty"}


def test_values_are_shown_as_they_were_sent(site: Site) -> None:
    said = "delay: -1 is not a duration; it must be finite and not negative"
    assert site.post(JOBS, {"type": "tag", "delay": -1}, 422)["error"] == said
    assert site.post(JOBS, [], 422)["error"] == "body: must be a JSON object"
    assert site.post(JOBS, {"type": "tag", "meta": 5}, 422)["error"] == "meta: must be a JSON object"
    assert site.post(JOBS, {"type": "tag", "batch": 7}, 422)["error"] == "batch: there is no batch 7"


def test_a_job_comes_with_its_errors_runs_and_timeline(site: Site) -> None:
    job_id = site.desk.put(at=NOW - 5)
    site.rows("UPDATE jobs SET created_at = ?", NOW - 9)
    site.desk.finish(job_id, Status.FAILED)

    job = site.get(f"{JOBS}/{job_id}")

    assert [(error["kind"], error["message"], error["traceback"]) for error in job["errors"]] == [
        ("exception", "ValueError: no such picture", "line 1")
    ]
    assert [run["outcome"] for run in job["runs"]] == ["exception"]
    events = [entry["event"] for entry in job["timeline"]]
    assert events == ["created", "due", "attempt 1 started", "attempt 1 ended: exception", "failed"]
    assert (job["status"], job["last_error"], job["attempts"]) == ("failed", "ValueError: no such picture", 1)


def test_payloads_and_results_are_shown_only_if_the_settings_say_so(make_site: Callable[..., Site]) -> None:
    hidden = make_site()
    job_id = hidden.desk.put(payload=json.dumps({"card": SECRET}))
    hidden.rows("UPDATE jobs SET result = ?", json.dumps([SECRET]))

    job = hidden.get(f"{JOBS}/{job_id}")
    assert (job["payload"], job["result"], job["redacted"]) == (None, None, True)
    for path in (f"{JOBS}/{job_id}", JOBS, "/api/admin/overview", "/api/admin/stats"):
        assert SECRET not in hidden.client.ask("GET", path).text

    shown = make_site(supervised=False, show_payloads=True)
    job = shown.get(f"{JOBS}/{job_id}")
    assert (job["payload"], job["result"], job["redacted"]) == ({"card": SECRET}, [SECRET], False)
    assert SECRET not in shown.client.ask("GET", JOBS).text


def test_payloads_and_results_are_searched_where_they_may_be_seen(make_site: Callable[..., Site]) -> None:
    site = make_site(show_payloads=True)
    paid = site.desk.put(payload=json.dumps({"card": SECRET}))
    told = site.desk.put()
    failed = site.desk.put("mail")
    site.desk.finish(failed, Status.FAILED)
    site.rows("UPDATE jobs SET result = ? WHERE id = ?", '"Cat on a sofa"', told)

    def found(**which: Any) -> list[int]:
        return [job["id"] for job in site.get(JOBS, **which)["jobs"]]

    assert found(text="4111-1111") == [paid]
    assert found(text="cat ON") == [told]
    assert found(text="such picture") == [failed]
    assert found(text="4111", type="mail") == []
    counted = site.post(f"{JOBS}/cancel", {"filter": {"text": SECRET}})
    assert counted["matching"] == 1
    hidden = make_site(supervised=False)
    assert "payloads are hidden" in hidden.post(f"{JOBS}/cancel", {"filter": {"text": SECRET}}, 403)["error"]


def test_a_list_is_sorted_by_a_column_both_ways(site: Site) -> None:
    low, high, middle = (site.desk.put(priority=priority) for priority in (-5, 9, 3))

    def listed(**params: Any) -> list[int]:
        return [job["id"] for job in site.get(JOBS, **params)["jobs"]]

    assert listed(sort="priority") == [low, middle, high]
    assert listed(sort="priority", order="desc", limit=2) == [high, middle]
    assert listed(sort="id") == [low, high, middle]
    assert listed(sort="priority", before=middle) == [low, high]
    assert listed(sort="type", order="desc") == [middle, high, low]
    assert listed(id=[low, middle], sort="priority", order="desc") == [middle, low]


def test_what_is_given_with_a_job_is_shown_with_it_and_found_by_its_tags(site: Site) -> None:
    meta = {"tags": ["nightly", "eu"], "trace": "4bf9"}
    job, other, plain = (
        site.post(JOBS, {"type": "tag"} | more, 201)["id"] for more in ({"meta": meta}, {"meta": {"tags": ["eu"]}}, {})
    )
    assert site.get(f"{JOBS}/{job}")["meta"] == meta
    assert site.get(f"{JOBS}/{plain}")["meta"] is None
    for tags, expected in (("eu", [other, job]), (["eu", "nightly"], [job])):
        assert [found["id"] for found in site.get(JOBS, tag=tags)["jobs"]] == expected


def test_a_row_in_no_state_at_all_breaks_no_page(site: Site) -> None:
    job = site.desk.put()
    site.rows("UPDATE jobs SET status = 'lost'")
    assert [found["status"] for found in site.get(JOBS)["jobs"]] == ["quarantined"]
    assert "'lost'" in site.get(f"{JOBS}/{job}")["last_error"]
    for page in ("/api/admin/overview", "/api/admin/stats", "/api/admin/types", "/", "/jobs", f"/jobs/{job}"):
        assert site.client.ask("GET", page).status_code == 200, page


@pytest.mark.parametrize("job_id", ["4711", str(2**63 - 1)])
def test_an_unknown_job_is_not_found(site: Site, job_id: str) -> None:
    before = site.everything

    assert job_id in site.get(f"{JOBS}/{job_id}", 404)["error"]
    site.post(f"{JOBS}/{job_id}/retry", status=404)
    site.post(f"{JOBS}/{job_id}/cancel", status=404)
    site.delete(f"{JOBS}/{job_id}", 404)
    assert site.everything == before


@pytest.mark.parametrize("job_id", ["0", "-1", "x", str(2**63), "1.5", "9" * 5000, "%00", "%F0"])
def test_what_is_no_id_is_refused(site: Site, job_id: str) -> None:
    assert site.get(f"{JOBS}/{job_id}", 422)["field"] == "job_id"
    site.delete(f"{JOBS}/{job_id}", 422)


ODD_ROWS = [
    ("a payload that is no text", "payload = CAST(x'fffe7b' AS TEXT)"),
    ("a payload that is no JSON", "payload = '{\"a\": '"),
    ("a payload of numbers that JSON has not", "payload = '[NaN, Infinity, -Infinity]'"),
    ("a payload that is infinite", "payload = '1e999'"),
    ("a lone surrogate", 'payload = \'{"\\ud800": "\\udfff x"}\''),
    ("a deep payload", f"payload = '{'[' * 900}{']' * 900}'"),
    ("a very deep payload", f"payload = '{'[' * 100_000}'"),
    ("a number of many digits", f"payload = '{'9' * 5000}'"),
    ("times as texts", "created_at = '2026-11-21 10:00:00', updated_at = 'yesterday'"),
    ("times as bytes", "created_at = x'ff00', updated_at = x''"),
    ("no times", "created_at = NULL, updated_at = NULL"),
    ("infinite times", "created_at = 9e999, started_at = -9e999, completed_at = 9e999, progress = 9e999"),
    ("texts that are no UTF-8", "last_error = CAST(x'ff' AS TEXT), requires = CAST(x'fe' AS TEXT)"),
    ("a key with a NUL", "unique_key = 'a' || char(0) || 'b', last_error = char(0)"),
    ("markup", "last_error = '<img src=x onerror=alert(1)>', requires = '</script>'"),
    ("great numbers", "attempts = 9223372036854775807, claim_token = -9223372036854775808, max_attempts = 1"),
    ("gates that are no text", "concurrency_key = CAST(x'ff' AS TEXT), fair_key = CAST(x'ff' AS TEXT), batch = -1"),
    ("a result that is no JSON", "result = 'done', status = 'done'"),
]


@pytest.mark.parametrize("change", [change for _, change in ODD_ROWS], ids=[name for name, _ in ODD_ROWS])
@pytest.mark.parametrize("show", [False, True], ids=["redacted", "shown"])
def test_whatever_another_program_has_written_comes_out_as_json_of_the_promised_shape(
    make_site: Callable[..., Site], change: str, show: bool
) -> None:
    site = make_site(show_payloads=show)
    job_id = site.desk.put()
    site.rows(f"UPDATE jobs SET {change}")
    site.rows(
        "INSERT INTO job_errors (job_id, attempt, kind, message, traceback, duration, created_at) "
        "VALUES (?, 1, CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT), CAST(x'fd' AS TEXT), 9e999, 9e999)",
        job_id,
    )

    JobDocument.model_validate_json(json.dumps(site.get(f"{JOBS}/{job_id}")), strict=True)
    assert len(JobPage.model_validate_json(json.dumps(site.get(JOBS)), strict=True).jobs) == 1
    for path in ("overview", "stats", "failures?since=0", "types"):
        site.get(f"/api/admin/{path}")


# Putting in


def test_an_enqueued_job_is_as_the_python_api_makes_it(site: Site) -> None:
    at = datetime.datetime(2031, 5, 4, 3, 2, 1, tzinfo=datetime.UTC)
    body = {
        "type": "tag",
        "payload": {"path": "cät.jpg"},
        "priority": 5,
        "at": at.isoformat(),
        "requires": ["gpu", "cpu"],
        "max_attempts": 2,
        "unique_key": "cat",
    }

    made = site.post(JOBS, body, 201)

    job = site.desk.job(made["id"])
    assert (job.type, job.payload, job.priority, job.scheduled_at) == ("tag", {"path": "cät.jpg"}, 5, at.timestamp())
    assert (job.requires, job.max_attempts, job.unique_key) == ("cpu gpu", 2, "cat")
    assert made["duplicate"] is False


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        ({}, {}),
        ({"payload": None}, {}),
        ({"payload": [1, None]}, [1, None]),
        ({"payload": 0}, 0),
        ({"delay": "10s"}, {}),
    ],
)
def test_a_type_is_enough(site: Site, body: dict[str, Any], payload: Any) -> None:
    made = site.client.ask("POST", JOBS, json={"type": "tag"} | body)

    assert made.status_code == 201
    assert made.headers["location"] == f"{JOBS}/{made.json()['id']}"
    job = site.desk.job(made.json()["id"])
    assert job.payload == payload
    assert (job.scheduled_at > job.created_at + 9) == ("delay" in body)


def test_a_duplicate_key_answers_with_the_job_that_has_it(site: Site) -> None:
    first = site.post(JOBS, {"type": "tag", "unique_key": "k"}, 201)
    site.post(JOBS, {"type": "mail", "unique_key": "k"}, 201)

    again = site.post(JOBS, {"type": "tag", "unique_key": "k", "payload": 1}, 200)

    assert again == {"id": first["id"], "duplicate": True}
    assert len(site.rows()) == 2
    site.desk.finish(first["id"], at=time.time() + 1)
    assert site.post(JOBS, {"type": "tag", "unique_key": "k"}, 201)["id"] > first["id"]


def test_a_duplicate_may_replace_the_job_or_be_a_conflict(site: Site) -> None:
    body = {"type": "tag", "unique_key": "k", "unique": "pending"}
    first = site.post(JOBS, body, 201)["id"]

    refused = site.post(JOBS, body | {"on_duplicate": "error"}, 409)
    assert (refused["duplicate_of"], "unique key" in refused["error"]) == (first, True)
    assert site.post(JOBS, body | {"on_duplicate": "replace", "payload": 2}, 200) == {"id": first, "duplicate": True}
    assert site.desk.job(first).payload == 2
    assert site.post(JOBS, {"type": "tag", "unique_for": "1h"}, 422)["field"] == "unique_for"


BAD_JOBS = [
    ({}, "type"),
    ({"type": ""}, "type"),
    ({"type": "Ta g"}, "type"),
    ({"type": "tag\n"}, "type"),
    ({"type": "a" * 101}, "type"),
    ({"type": 5}, "type"),
    ({"type": "tag", "kind": "tag"}, "kind"),
    ({"type": "tag", "priority": 101}, "priority"),
    ({"type": "tag", "priority": "5"}, "priority"),
    ({"type": "tag", "priority": True}, "priority"),
    ({"type": "tag", "priority": 10**30}, "priority"),
    ({"type": "tag", "delay": "soon"}, "delay"),
    ({"type": "tag", "delay": -1}, "delay"),
    ({"type": "tag", "delay": 1e300}, "delay"),
    ({"type": "tag", "delay": 1, "at": 5}, "delay"),
    ({"type": "tag", "at": "2031-05-04T03:02:01"}, "at"),
    ({"type": "tag", "at": "tomorrow"}, "at"),
    ({"type": "tag", "at": 1.7e12}, "at"),
    ({"type": "tag", "requires": ["a b"]}, "requires"),
    ({"type": "tag", "requires": 5}, "requires"),
    ({"type": "tag", "max_attempts": 0}, "max_attempts"),
    ({"type": "tag", "unique_key": ""}, "unique_key"),
    ({"type": "tag", "unique_key": "k" * 1001}, "unique_key"),
    *(({"type": "tag", "meta": meta}, "meta") for meta in ([1], "text", {"a": "x" * 20_000})),
    ({"type": "tag", "payload": "x" * (1 << 20)}, "payload"),
    ({"type": "tag", "payload": json.loads("[" * 65 + "]" * 65)}, "payload"),
]


@pytest.mark.parametrize(("body", "field"), BAD_JOBS)
def test_a_job_that_cannot_be_is_refused_and_nothing_is_written(site: Site, body: Any, field: str) -> None:
    refused = site.post(JOBS, body, 422)

    assert refused["field"].split(".")[0] == field
    assert site.rows() == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"null", 422),
        (b"[]", 422),
        (b"5", 422),
        (b'{"type": "tag"} x', 400),
        (b"[" * 500_000, 400),
        (b'{"type": "tag", "payload": ' + b"[" * 250_000 + b"]" * 250_000 + b"}", 400),
        (b'{"type": "tag", "payload": NaN}', 422),
        (b'{"type": "tag", "payload": 1e999}', 422),
        (b'{"type": "tag", "priority": NaN}', 422),
        (b'{"type": "tag", "delay": Infinity}', 422),
        (b'{"type": "tag", "payload": "\\ud800"}', 422),
        (b'{"type": "tag", "unique_key": "\\ud800"}', 422),
        (b'{"type": "\\ud800"}', 422),
        (b'{"type": "tag", "\\ud800": 1}', 422),
        (b'{"type": "tag", "at": "\\ud800"}', 422),
        (b'{"type": "tag", "payload": ' + b"9" * 5000 + b"}", 400),
    ],
)
def test_what_is_no_proper_json_is_refused_and_nothing_is_written(site: Site, body: bytes, status: int) -> None:
    for path in (JOBS, f"{JOBS}/retry"):
        answer = site.client.ask("POST", path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in ((status, 422) if path != JOBS else (status,)), answer.text
        assert set(answer.json()) <= {"error", "hint", "field"}
    assert site.rows() == []


# Changing the fate of one


def test_a_failed_job_is_retried_and_a_waiting_one_is_not(site: Site) -> None:
    job_id = site.desk.put()
    site.desk.finish(job_id, Status.FAILED)

    assert site.post(f"{JOBS}/{job_id}/retry", {}) == {"id": job_id, "status": "pending"}
    assert site.desk.job(job_id).attempts == 0
    before = site.everything
    assert "pending" in site.post(f"{JOBS}/{job_id}/retry", status=409)["error"]
    assert site.everything == before


def test_a_job_whose_key_is_taken_is_left_as_it_is(site: Site) -> None:
    old = site.desk.put(unique_key="k")
    site.desk.finish(old, Status.FAILED)
    new = site.desk.put(unique_key="k")
    before = site.everything

    refused = site.post(f"{JOBS}/{old}/retry", status=409)
    assert (refused["duplicate_of"], "unique key" in refused["error"]) == (new, True)
    assert site.everything == before


def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked_to_stop(site: Site) -> None:
    running = site.desk.put()
    site.desk.one()
    waiting = site.desk.put()

    assert site.post(f"{JOBS}/{waiting}/cancel") == {"id": waiting, "status": "cancelled"}
    assert site.post(f"{JOBS}/{running}/cancel") == {"id": running, "status": "running"}
    assert site.desk.job(running).cancel_requested_at is not None
    before = site.everything
    site.post(f"{JOBS}/{waiting}/cancel", status=409)
    assert site.everything == before


def test_a_finished_job_is_deleted_and_an_unfinished_one_is_not(site: Site) -> None:
    done, waiting = site.desk.put("a"), site.desk.put("b")
    site.desk.finish(done)

    assert site.delete(f"{JOBS}/{done}") == {"id": done, "status": "deleted"}
    site.delete(f"{JOBS}/{done}", 404)
    assert "pending" in site.delete(f"{JOBS}/{waiting}", 409)["error"]
    assert [row[0] for row in site.rows()] == [waiting]


@pytest.mark.parametrize("change", ["retry", "cancel"])
def test_a_change_takes_no_arguments(site: Site, change: str) -> None:
    job_id = site.desk.put()
    before = site.everything

    site.post(f"{JOBS}/{job_id}/{change}", {"force": True}, 422)
    site.post(f"{JOBS}/{job_id}/{change}", [1], 422)
    assert site.everything == before


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        (JOBS, {"type": 7}, "type: must be a valid string"),
        (JOBS, {"type": "tag", "priority": "high"}, "priority: must be a valid integer"),
        (JOBS, {"type": "tag", "priority": 101}, "priority: must be less than or equal to 100"),
        (f"{JOBS}/retry", {"filter": {"type": 3}}, "filter.type: must be a valid list"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_the_words_of_the_configuration(
    site: Site, path: str, body: Any, error: str
) -> None:
    assert site.post(path, body, 422)["error"] == error


def test_a_job_is_retried_with_another_payload(make_site: Callable[..., Site]) -> None:
    site = make_site(show_payloads=True)
    job_id = site.desk.put(payload='{"n": 1}')
    site.desk.finish(job_id, Status.FAILED)

    refused = site.post(f"{JOBS}/{job_id}/retry", {"payload": "x" * (1 << 20)}, 422)
    assert refused["field"] == "payload"
    assert site.get(f"{JOBS}/{job_id}")["status"] == "failed"
    assert site.post(f"{JOBS}/{job_id}/retry", {"payload": {"n": 2}}) == {"id": job_id, "status": "pending"}

    job = site.get(f"{JOBS}/{job_id}")
    assert (job["status"], job["payload"]) == ("pending", {"n": 2})


def test_a_job_that_has_succeeded_runs_again_only_if_that_is_said(site: Site) -> None:
    job_id = site.desk.put()
    site.desk.finish(job_id)

    assert "only with `done`" in site.post(f"{JOBS}/{job_id}/retry", status=409)["error"]
    assert site.post(f"{JOBS}/{job_id}/retry", {"payload": {}}, 409)
    assert site.get(f"{JOBS}/{job_id}")["status"] == "done"
    assert site.post(f"{JOBS}/{job_id}/retry", {"done": True})["status"] == "pending"
    assert "only a failed" in site.post(f"{JOBS}/{job_id}/retry", {"done": True}, 409)["error"]
