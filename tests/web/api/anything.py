"""Schemathesis asks everything that the OpenAPI document allows, and much that it does not.

Run by test_api_anything.py in a process of its own: what there is to ask is found out when tests are collected, which
takes seconds, and every process of a parallel run collects all tests. The requests are the same in every run.
`API_EXAMPLES=500` asks for longer, and each time something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from supervisor.admin import access
from supervisor.admin.access import AccessMiddleware
from supervisor.admin.app import make_app
from supervisor.admin.keys import Keys
from supervisor.domain.job import Status
from tests.web.api.conftest import BULLETIN, Site, supervise
from tests.web.api.test_api_jobs import ODD_ROWS

EXAMPLES = int(os.environ.get("API_EXAMPLES", "0"))
TOKEN = "t" * 43
# What the document cannot say: days that no calendar has, states in which a change is impossible, keys that a job with
# another payload has, fields that are no JSON, and that cancel and a key exclude each other.
BEYOND = {"at", "since", "finished_after", "finished_before", "idempotency_key", "fields", "cancel"}
BEYOND |= {f"filter.{name}" for name in ("finished_after", "finished_before", "status")}
BEYOND |= {"body", "expires_at"}  # fields that exclude each other, and times that are over
BEYOND |= {"delay", "expires_in", "unique_for"}  # durations
BEYOND |= {"batch", "filter.batch"}  # the largest id, which the document rounds up

# Their bodies are tables of the configuration, which says what is in them.
CONFIGURED = {"/api/admin/limits/{type}", "/api/admin/schedules/{name}"}

load_all_checks()
EVERY_CHECK = [check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"]

# POST of such an address is a request for a type with a slash.
EXCEPT = {name: ["/run/{type}/{job_id}"] for name in ("unsupported_method", "allow_header_conformance")}


class Stage:
    """The application that is asked: its routes are known at once, its database with each test."""

    def __init__(self) -> None:
        self.play: Any = make_app(SimpleNamespace())  # type: ignore[arg-type] - no request is made of it

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.play(scope, receive, send)


stage = Stage()
schema = schemathesis.openapi.from_asgi("/openapi.json", stage)
schema.config.max_stream_events = 1  # the next one comes when something has changed


@pytest.fixture(autouse=True)
def site(make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> Site:
    """An application behind its gate, with jobs of every state and the oddest rows."""
    monkeypatch.setattr(access, "WRONG_TOKEN_PAUSE", 0.0)
    site = make_site(hosts=("testserver",), show_payloads=True)
    supervise(
        site.engine, site.desk, site.path.parent, BULLETIN, name="s2"
    ).path.unlink()  # its pools may take anything
    site.state.requests.leave()  # no worker is there: whoever waits for a result is told that it will come later
    for status in (Status.DONE, Status.FAILED, Status.QUARANTINED):
        site.desk.finish(site.desk.put("tag"), status)
    site.desk.put("mail", unique_key="k")
    for _, change in ODD_ROWS:
        site.rows(f"UPDATE jobs SET {change} WHERE id = ?", site.desk.put("odd"))
    monkeypatch.setattr(
        stage, "play", AccessMiddleware(site.client.app, Keys(TOKEN, None, "session"), site.state.settings)
    )
    return site


@schema.parametrize()
@settings(
    max_examples=EXAMPLES or 10,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_asked_is_answered_as_the_document_says(case: schemathesis.Case) -> None:
    answer = case.call(headers={"Authorization": f"Bearer {TOKEN}"})

    case.validate_response(
        answer, checks=[check for check in EVERY_CHECK if case.path not in EXCEPT.get(check.__name__, ())]
    )
    positive = case.meta is not None and case.meta.generation.mode.is_positive
    if positive and answer.status_code == 422 and case.path not in CONFIGURED:
        assert answer.json()["field"] in BEYOND, answer.text
