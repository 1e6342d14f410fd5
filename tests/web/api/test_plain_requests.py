"""`POST /run` past the framework's routing is answered as by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.admin.api.run import direct
from tests.web.api.conftest import Client, Site

PLAIN = [
    {},
    {"content": b'{"n": 1}'},
    {"content": b"7"},
    {"content": b""},
    {"params": {"wait": 0, "cancel": "true", "priority": 7, "max_attempts": 2}},
    {"headers": {"idempotency-key": "key-1"}},
    {"path": "/run/App%2FJobs:Send"},
    {"path": "/run/tag/1"},
    # Refused by the request itself, not by its parameters.
    {"content": b"{"},
    {"content": b'{"a": NaN}'},
    {"content": b"[" * 10_000},
    {"content": b'"\xff"'},
    {"params": {"fields": "{}"}},
]
OTHERS = [
    {"params": {"wait": "soon"}},
    {"params": {"wait": 301}},
    {"params": {"priority": 101}},
    {"params": {"max_attempts": 0}},
    {"params": {"unknown": 1}},
    {"params": [("wait", 0), ("wait", 0)]},
    {"params": {"requires": "gpu", "wait": 0}},
    {"headers": {"idempotency-key": "a b"}},
    {"headers": {"idempotency-key": "k" * 201}},
    {"headers": [("idempotency-key", "a"), ("idempotency-key", "b")]},
    {"path": "/run/a%20b"},
    {"path": "/run/"},
    {"method": "GET", "path": "/run/tag/1"},
    {"method": "PUT"},
]


def answers(site: Site, request: dict[str, Any]) -> tuple[list[Any], int]:
    """What the framework answers and what the other way does, and how often that has asked the framework."""
    framework = site.client.app.shared()
    framework.state.state = site.state
    asked: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)
        await framework(scope, receive, send)

    found = []
    for app in (framework, direct(behind, site.state)):
        site.rows("DELETE FROM jobs")
        client = Client(app)
        given = {"params": {"wait": 0}, **{name: value for name, value in request.items() if name in GIVEN}}
        answer = client.ask(request.get("method", "POST"), request.get("path", "/run/tag"), **given)
        client.close()
        columns = "type, payload, priority, requires, max_attempts, unique_key, status"
        found.append([answer.status_code, _body(answer), *site.rows(f"SELECT {columns} FROM jobs")])
    return found, len(asked)


GIVEN = ("params", "headers", "content")


def _body(answer: Any) -> Any:
    body = json.loads(answer.content)
    return {**body, "id": None} if "id" in body else body


@pytest.mark.parametrize(("request_", "asked"), [*((one, 0) for one in PLAIN), *((one, 1) for one in OTHERS)], ids=str)
def test_every_request_gets_the_frameworks_answer_and_a_plain_one_without_it(
    site: Site, request_: dict[str, Any], asked: int
) -> None:
    (theirs, ours), found = answers(site, request_)
    assert (ours, found) == (theirs, asked)


def test_an_error_that_has_no_answer_is_raised(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The access middleware logs it, and answers."""

    async def fail(job: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(site.state.requests, "enqueue", fail)
    with pytest.raises(ZeroDivisionError):
        site.client.ask("POST", "/run/tag", params={"wait": 0})
