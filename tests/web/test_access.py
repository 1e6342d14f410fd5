"""The gate, in this process: whom it lets in, with what, and what it says to the others."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI, Request

from supervisor.admin import access, login
from supervisor.admin.access import LARGEST_BODY, LARGEST_FORM, AccessMiddleware
from supervisor.admin.keys import SESSION_SECONDS, Keys, keys_of
from supervisor.admin.state import may_change
from supervisor.config.settings import AdminSettings
from supervisor.domain.errors import StoreBusy, StoreError
from tests.web import application
from tests.web.application import Application, http_scope, state_for

TOKEN = "a-token-of-good-length"
READER = "a-token-for-looking-on"
KEYS = Keys(TOKEN, READER, "supervisor_8787")
SETTINGS = AdminSettings("127.0.0.1:8787", Path("t"), Path("r"), ("jobs.example.org",), False, False)
ADMIN = {"authorization": f"Bearer {TOKEN}"}
LOOKING = {"authorization": f"Bearer {READER}"}
JSON = {"content-type": "application/json", "x-requested-with": "supervisor"}
PAGE = {"accept": "text/html,application/xhtml+xml"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    received: int  # bytes of the request's body that were taken

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """What the browser would send back."""
        return self.headers["set-cookie"].partition(";")[0]


@functools.cache
def furnished() -> FastAPI:
    """The application with some routes more, one of which notes what it sees."""
    app = application.new()

    @app.api_route("/static/there", methods=["GET", "POST"])
    @app.api_route("/there/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"])
    async def there(request: Request) -> dict[str, bool]:
        body = await request.body()
        request.scope["seen"].append((request.method, request.scope["state"]["role"], body))
        return {"may_change": may_change(request)}

    app.router.routes.insert(0, app.router.routes.pop())  # before what really lies there

    @app.get("/broken/{how}")
    async def broken(how: str) -> None:
        raise {"busy": StoreBusy("it is busy"), "store": StoreError("it is gone"), "bug": KeyError("secret")}[how]

    return app


@dataclass
class Door:
    """The application behind its gate, as one client after another comes to it. `seen` is what it lets in."""

    keys: Keys = KEYS
    settings: AdminSettings = SETTINGS
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        app = Application(state_for("sqlite:////nowhere/jobs.db", self.settings, self.keys), furnished)

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "seen": self.seen}, receive, send)

        self.gate = AccessMiddleware(noted, self.keys, self.settings)

    def ask(
        self,
        path: str = "/there/x",
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes = b"",
        parts: list[bytes] | None = None,
        local: str = "127.0.0.1",
    ) -> Answer:
        """`parts` are sent in chunks, without a length said before."""
        length = {"content-length": str(len(body))} if body else {}
        length = length if parts is None else {"transfer-encoding": "chunked"}
        head = {"host": "127.0.0.1:8787"} | length | (headers or {})
        scope = http_scope(path, {n: value for n, value in head.items() if value != "-"}, method=method, local=local)
        coming = [body] if parts is None else list(parts)
        sent: list[dict[str, Any]] = []
        taken = 0

        async def receive() -> dict[str, Any]:
            nonlocal taken
            if not coming:
                return {"type": "http.disconnect"}
            part = coming.pop(0)
            taken += len(part)
            return {"type": "http.request", "body": part, "more_body": bool(coming)}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.gate(scope, receive, send))
        given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], given, b"".join(one.get("body", b"") for one in sent[1:]), taken)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(access, "WRONG_TOKEN_PAUSE", 0.0)
    monkeypatch.setattr(login, "WRONG_TOKEN_PAUSE", 0.0)
    return Door()


ROUTES = ["/there/x", "/healthz", "/login", "/static/there", "/nothing"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost:8787", "LOCALHOST", "[::1]:8787", "[::1]"])
@pytest.mark.parametrize("path", ROUTES)
def test_the_names_of_this_machine_are_let_in(door: Door, host: str, path: str) -> None:
    assert door.ask(path, {"host": host} | ADMIN).status != 421


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.evil.example", "jobs.example.org.evil",
     "[::1].evil", "[::2]", "192.168.1.7", "", "-", ":8787", "evil@127.0.0.1"],
)  # fmt: skip
@pytest.mark.parametrize("path", ROUTES)
def test_any_other_host_is_refused_on_every_route(door: Door, host: str, path: str) -> None:
    answer = door.ask(path, {"host": host} | ADMIN)
    assert (answer.status, bool(answer.json["error"]), door.seen) == (421, True, [])


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("jobs.example.org", "127.0.0.1"),
        ("Jobs.Example.Org:443", "127.0.0.1"),
        ("10.0.0.7:8787", "10.0.0.7"),
        ("10.0.0.7:8787", "::ffff:10.0.0.7"),
        ("[2001:db8::7]:8787", "2001:db8::7"),
    ],
)
def test_a_host_that_is_configured_or_was_reached_is_let_in(door: Door, host: str, local: str) -> None:
    assert door.ask(headers={"host": host} | ADMIN, local=local).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN.upper()}"},
        {"authorization": "Bearer \u00fc"},
        {"cookie": f"supervisor_8787={TOKEN}"},
        {"cookie": "supervisor_8787=admin.99999999999.00"},
        {"cookie": "supervisor_8787=admin.x.00"},
        {"cookie": "supervisor_8787=..."},
    ],
)
@pytest.mark.parametrize("path", ["/there/x", "/api/admin/jobs", "/metrics", "/openapi.json", "/nothing", "/"])
def test_without_the_token_nothing_is_answered(door: Door, headers: dict[str, str], path: str) -> None:
    answer = door.ask(path, headers)
    assert (answer.status, answer.headers["www-authenticate"], door.seen) == (401, "Bearer", [])
    assert answer.json["error"]
    door.settings = SETTINGS._replace(token_file=Path("/srv/app.db-supervisor/admin-token"))
    hint = Door(door.keys, door.settings).ask(path, headers).json["hint"]
    assert "/srv/" not in hint
    assert "app.db-supervisor/admin-token" in hint


@pytest.mark.parametrize(
    ("path", "headers", "may_change"),
    [
        ("/there/x", ADMIN, True),
        ("/there/x", {"authorization": f"bearer  {TOKEN} "}, True),
        ("/there/x", LOOKING, False),
        ("/static/there", {}, False),
    ],
)
def test_the_tokens_give_their_roles(door: Door, path: str, headers: dict[str, str], may_change: bool) -> None:
    assert door.ask(path, headers).json == {"may_change": may_change}


def test_a_wrong_token_counts_although_the_browser_has_a_session_and_costs_time(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"cookie": f"supervisor_8787={KEYS.session('admin', time.time())}"}
    assert door.ask(headers=session).status == 200
    monkeypatch.setattr(access, "WRONG_TOKEN_PAUSE", 0.2)
    began = time.monotonic()
    assert door.ask(headers=session | {"authorization": "Bearer wrong-wrong-wrong"}).status == 401
    assert time.monotonic() - began >= 0.2


def test_a_browser_that_asks_for_a_page_is_sent_to_log_in_and_back(door: Door) -> None:
    answer = door.ask("/there/x?status=failed&type=a+b", PAGE)
    assert answer.status == 303
    assert answer.headers["location"] == "/login?next=/there/x%3Fstatus%3Dfailed%26type%3Da%2Bb"
    for path in ("/api/admin/jobs", "/metrics", "/readyz"):
        assert door.ask(path, PAGE).status == 401
    assert door.ask(headers=PAGE | JSON, method="POST").status == 401


BARE = AdminSettings("unix:/run/x", None, None, (), show_payloads=False, allow_remote=False)


def test_on_a_unix_socket_nobody_is_asked_unless_a_token_file_is_named(door: Door) -> None:
    local = Door(keys_of(BARE), BARE)
    assert local.ask(headers={"host": "localhost"}).json == {"may_change": True}
    assert Door(Keys(TOKEN, None, "supervisor_unix"), BARE).ask(headers={"host": "localhost"}).status == 401
    assert local.ask(method="POST").status == 403  # another site's form cannot send this
    assert local.ask(headers=JSON, method="POST", body=b"{}").status == 200


def log_in(door: Door, token: str, target: str = "/", **headers: str) -> Answer:
    form = urlencode({"token": token, "next": target}).encode()
    kind = {"content-type": "application/x-www-form-urlencoded"} | headers
    return door.ask("/login", PAGE | kind, method="POST", body=form)


@pytest.mark.parametrize(("token", "change"), [(TOKEN, True), (READER, False)])
def test_a_browser_logs_in_once_and_is_known_from_then_on(door: Door, token: str, change: bool) -> None:
    answer = log_in(door, token, "/there/x?a=1")
    assert (answer.status, answer.headers["location"]) == (303, "/there/x?a=1")
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert sorted(attributes, key=str.lower) == ["HttpOnly", f"Max-Age={SESSION_SECONDS}", "Path=/", "SameSite=strict"]
    assert token not in answer.cookie
    assert door.ask(headers={"cookie": f"other=1; {answer.cookie}"}).json == {"may_change": change}
    assert door.ask("/login?next=/there/y", {"cookie": answer.cookie}).headers["location"] == "/there/y"
    # Behind an encrypting proxy it is never sent in clear text.
    assert "; Secure" in log_in(door, token, **{"x-forwarded-proto": "https"}).headers["set-cookie"]


def test_a_wrong_token_is_told_so_and_gives_no_session(door: Door) -> None:
    answer = log_in(door, "<img src=x onerror=alert(1)>", "/there/x")
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)
    assert (b"The token is wrong" in answer.body, b"<img" in answer.body) == (True, False)


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil", "javascript:alert(1)", "", "x",
     "/a\\b", "/\t/evil.example", "/a\nb", "///evil"],
)  # fmt: skip
def test_nobody_is_sent_to_another_site_after_logging_in(door: Door, target: str) -> None:
    assert log_in(door, TOKEN, target).headers["location"] == "/"
    assert b"evil" not in door.ask(f"/login?{urlencode({'next': target})}", PAGE).body


@pytest.mark.parametrize(
    ("keys", "later", "change", "role"),
    [
        (KEYS, SESSION_SECONDS - 1, str, "reader"),
        (KEYS, SESSION_SECONDS, str, None),
        (Keys(TOKEN, "another-token-for-looking", "c"), 0, str, None),
        (Keys(TOKEN, None, "c"), 0, str, None),
        (Keys(None, None, "c"), 0, lambda session: "admin.99999999999.", None),
        (KEYS, 0, lambda session: session.replace("reader", "admin"), None),
        (KEYS, 0, lambda session: re.sub(r"(\d)[.]", lambda digit: f"{9 - int(digit[1])}.", session, count=1), None),
        (KEYS, 0, lambda session: session[:-1], None),
    ],
)
def test_a_session_ends_after_twelve_hours_with_its_token_and_with_a_change_of_a_letter(
    keys: Keys, later: float, change: Callable[[str], str], role: str | None
) -> None:
    now = time.time()
    assert keys.role_of_session(change(KEYS.session("reader", now)), now + later) == role


def test_logging_out_has_the_browser_forget(door: Door) -> None:
    cookie = log_in(door, TOKEN).cookie
    answer = door.ask("/logout", {"cookie": cookie}, method="POST")
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert answer.headers["set-cookie"].startswith('supervisor_8787=""; ')
    assert "Max-Age=0" in answer.headers["set-cookie"]


def test_the_login_takes_a_form_alone(door: Door) -> None:
    assert door.ask("/login", JSON, method="POST", body=b'{"token": "x"}').status == 401
    too_much = b"token=" + b"x" * LARGEST_FORM
    assert log_in(door, "x" * LARGEST_FORM).status == 413
    assert door.ask("/login", {"content-length": "9" * 30}, method="POST", body=too_much).status == 413


@pytest.mark.parametrize(
    "told",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "origin": "https://evil.example"},
        {"sec-fetch-site": "nonsense"},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://127.0.0.1"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://[::1"},
        {"origin": "http://jobs.example.org:9999"},
    ],
)
@pytest.mark.parametrize("path", ["/there/x", "/login", "/logout", "/api/admin/jobs/retry"])
def test_another_site_can_have_a_browser_change_nothing(door: Door, told: dict[str, str], path: str) -> None:
    answer = door.ask(path, ADMIN | JSON | told, method="POST", body=b"{}")
    assert answer.status == 403
    assert door.seen == []


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8787"},
        {"sec-fetch-site": "same-origin", "origin": "null"},  # as browsers send it where the referrer is withheld
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:8787"},
        {"origin": "https://jobs.example.org"},  # before a proxy that asks for us by another name
    ],
)
def test_our_own_pages_can(door: Door, told: dict[str, str]) -> None:
    assert door.ask(headers=ADMIN | JSON | told, method="POST", body=b"{}").status == 200


@pytest.mark.parametrize(
    ("path", "mode", "status"),
    [("/there/x", "navigate", 200), ("/there/x", "no-cors", 403), ("/static/there", "no-cors", 403)],
)
def test_another_site_may_link_to_a_page_and_embed_nothing(door: Door, path: str, mode: str, status: int) -> None:
    assert door.ask(path, ADMIN | {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode}).status == status


OURS = {"x-requested-with": "supervisor"}
TEXT = {"content-type": "text/plain"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("token", "headers", "sent", "status"),
    [
        (None, {"content-type": "application/json"}, {"body": b"{}"}, 403),
        (None, {"x-requested-with": "XMLHttpRequest"}, {}, 403),
        (None, OURS | TEXT, {"body": b"{}"}, 415),
        (None, OURS, {"body": b"{}"}, 415),
        (None, OURS, {}, 200),
        (None, OURS | {"content-type": "Application/JSON; charset=utf-8"}, {"body": b"{}"}, 200),
        (ADMIN, TEXT, {}, 415),
        (ADMIN, {}, {"parts": [b"{", b"}"]}, 415),
        (ADMIN, {}, {}, 200),
        (LOOKING, JSON, {"body": b"{}"}, 403),
    ],
)
def test_a_change_needs_what_a_form_cannot_send_and_the_full_token(
    door: Door, method: str, token: dict[str, str] | None, headers: dict[str, str], sent: Any, status: int
) -> None:
    token = {"cookie": log_in(door, TOKEN).cookie} if token is None else token
    assert door.ask(headers=token | headers, method=method, **sent).status == status
    assert [body for _, _, body in door.seen] == ([sent.get("body", b"")] if status == 200 else [])


def test_a_session_of_whoever_may_look_changes_nothing_either(door: Door) -> None:
    session = {"cookie": log_in(door, READER).cookie}
    assert door.ask(headers=session | JSON, method="POST", body=b"{}").status == 403
    assert door.seen == []


def test_a_body_that_is_said_to_be_too_large_is_refused_before_any_of_it_is_taken(door: Door) -> None:
    answer = door.ask(headers=ADMIN | JSON, method="POST", body=b" " * (LARGEST_BODY + 1))
    assert (answer.status, answer.received) == (413, 0)
    assert answer.headers["connection"] == "close"
    assert door.ask(headers=ADMIN | JSON, method="POST", body=b" " * LARGEST_BODY).status == 200


def test_a_body_of_unknown_size_is_counted(door: Door) -> None:
    part = b" " * (256 << 10)
    answer = door.ask(headers=ADMIN | JSON, method="POST", parts=[part] * 400)
    assert answer.status == 413
    assert answer.received <= LARGEST_BODY + len(part)
    assert door.ask(headers=ADMIN | JSON, method="POST", parts=[b"{", b"}"]).status == 200
    assert door.seen == [("POST", "admin", b"{}")]


def test_a_body_counts_with_any_method_and_only_after_the_token(door: Door) -> None:
    assert door.ask(headers=ADMIN, body=b" " * (LARGEST_BODY + 1)).status == 413
    assert door.ask(headers=JSON, method="POST", body=b" " * (LARGEST_BODY + 1)).status == 401


def test_every_answer_keeps_the_browser_from_doing_anything_else_with_it(door: Door) -> None:
    answers = [
        door.ask(headers=ADMIN),
        door.ask(),
        door.ask(headers=PAGE),
        door.ask("/nothing", ADMIN),
        door.ask("/login"),
        log_in(door, TOKEN),
        door.ask(headers={"host": "evil.example"}),
        door.ask("/broken/bug", ADMIN),
        door.ask(headers=ADMIN | JSON, method="POST", body=b" " * (LARGEST_BODY + 1)),
    ]
    said = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert ("frame-ancestors 'none'" in policy, "unsafe" in policy) == (True, False)
        assert answer.headers | said == answer.headers
        assert answer.headers.keys() & {"date", "access-control-allow-origin", "server"} == {"date"}
    assert door.ask("/static/there").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    ("how", "status", "error", "again"),
    [
        ("busy", 503, "it is busy", True),
        ("store", 503, "it is gone", False),
        ("bug", 500, "internal error of the admin process", False),
    ],
)
def test_an_error_is_told_in_a_sentence_without_where_it_happened(
    door: Door, how: str, status: int, error: str, again: bool
) -> None:
    answer = door.ask(f"/broken/{how}", ADMIN)
    assert (answer.status, answer.json["error"], "retry-after" in answer.headers) == (status, error, again)
    assert b"Traceback" not in answer.body
    assert b"secret" not in answer.body


def test_whoever_goes_away_in_the_middle_of_a_body_changes_nothing(door: Door) -> None:
    door.ask(headers=ADMIN | JSON, method="POST", parts=[])
    assert door.seen == []
