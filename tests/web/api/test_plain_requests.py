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


class Noted:
    """The application behind it; `asked` counts its requests."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await self.app(scope, receive, send)


def answers(site: Site, request: dict[str, Any]) -> tuple[list[Any], int]:
    """What the framework answers and what the other way does, and how often that has asked the framework."""
    framework = site.client.app.shared()
    behind = Noted(framework)
    found = []
    for app in (framework, direct(behind, site.state)):
        site.rows("DELETE FROM jobs")
        framework.state.state = site.state
        client = Client(app)
        path, method = request.get("path", "/run/tag"), request.get("method", "POST")
        given = {"params": {"wait": 0}, **{name: value for name, value in request.items() if name in GIVEN}}
        answer = client.ask(method, path, **given)
        client.close()
        columns = "type, payload, priority, requires, max_attempts, unique_key, status"
        found.append([answer.status_code, _body(answer), *site.rows(f"SELECT {columns} FROM jobs")])
    return found, behind.asked


GIVEN = ("params", "headers", "content")


def _body(answer: Any) -> Any:
    body = json.loads(answer.content)
    return {**body, "id": None} if "id" in body else body


@pytest.mark.parametrize("request_", PLAIN, ids=str)
def test_a_plain_request_gets_the_frameworks_answer_without_it(site: Site, request_: dict[str, Any]) -> None:
    (theirs, ours), asked = answers(site, request_)
    assert ours == theirs
    assert asked == 0


@pytest.mark.parametrize("request_", OTHERS, ids=str)
def test_any_other_is_left_to_the_framework(site: Site, request_: dict[str, Any]) -> None:
    (theirs, ours), asked = answers(site, request_)
    assert ours == theirs
    assert asked == 1


def test_an_error_that_has_no_answer_is_raised(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The access middleware logs it, and answers."""

    async def fail(job: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(site.state.requests, "enqueue", fail)
    with pytest.raises(ZeroDivisionError):
        site.client.ask("POST", "/run/tag", params={"wait": 0})
