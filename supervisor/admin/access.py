"""The access middleware, which checks every request before any route.

It checks, in this order: the host name, the token or session, the origin of a browser's request, whether a change
was requested in a way that another site's form cannot, the role's permission, and the size of the body.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.admin.keys import Keys
from supervisor.admin.uploads import JSON, is_file, media_type
from supervisor.config.settings import AdminSettings
from supervisor.telemetry import events

LARGEST_BODY = 2 << 20  # bytes; a payload has 1 MiB at most
LARGEST_FORM = 16 << 10
WRONG_TOKEN_PAUSE = 0.5  # seconds of delay after a wrong token

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORMS = frozenset({"/login", "/logout"})
DATA = (
    "/api/",
    "/run/",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/healthz",
)  # for programs: never answered with a page
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(?::\d*)?")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Send nothing to other sites. With no-referrer, browsers would also hide the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused. `guessed`: it had a wrong token, so the answer is delayed."""

    status: int
    error: str
    hint: str = ""
    guessed: bool = False
    login: str = ""  # where a browser is redirected instead


class Visit:
    """The parts of a request that the access middleware uses."""

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = Headers(scope=scope)
        self.host = self.headers.get("host", "")
        self.query: bytes = scope["query_string"]
        self.local: str = (scope.get("server") or ("",))[0].removeprefix("::ffff:")
        self.changes = self.method not in SAFE

    @property
    def is_open(self) -> bool:
        """Whether it needs no token: nothing there shows data of jobs."""
        return self.path in ("/healthz", *FORMS) or self.path.startswith("/static/")

    @property
    def is_form(self) -> bool:
        return self.path in FORMS

    @property
    def wants_page(self) -> bool:
        """Whether a browser requests a page."""
        html = "text/html" in self.headers.get("accept", "")
        return html and not self.changes and not self.path.startswith(DATA)

    @property
    def bearer(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    @property
    def is_file(self) -> bool:
        """Whether its body is a file, which the route itself takes in and limits."""
        return is_file(self.method, self.path, self.headers)

    @property
    def is_unrouted(self) -> bool:
        """Whether no route takes this method: its body is of no interest."""
        return self.changes and self.method != "POST" and self.path.startswith("/run/")

    @property
    def length(self) -> int | None:
        """The length of the body in bytes as declared in the header; None if it is not declared."""
        if "transfer-encoding" in self.headers:
            return None
        length = self.headers.get("content-length", "0")
        return int(length[:20]) if length.isdecimal() else 0


class AccessMiddleware:
    """ASGI middleware around the application. It accepts the host names in `hosts` beside the usual ones."""

    def __init__(self, app: ASGIApp, keys: Keys, settings: AdminSettings) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset({*LOOPBACK, *settings.hosts, *_own_name(settings)})
        self._named = frozenset(settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        visit = Visit(scope)
        out = Outlet(send, visit)
        refusal = self._refusal(visit, scope)
        if refusal is not None:
            await self._refuse(refusal, visit, scope, receive, out)
            return
        if visit.is_file or visit.is_unrouted:
            out.body = Incoming(receive)
            await self._let_in(scope, out.body.receive, out)
            return
        body = await _body(visit, receive)
        if isinstance(body, Refusal):
            await self._refuse(body, visit, scope, receive, out)
        elif body is not None:
            await self._let_in(scope, _replay(body, receive), out)

    async def _let_in(self, scope: Scope, receive: Receive, out: Outlet) -> None:
        """Answer an unexpected error with one sentence; its traceback goes only to the log."""
        try:
            await self._app(scope, receive, out.send)
        except Exception as error:
            events(process="admin").error("request_failed", path=scope["path"] or None, exc_info=error)
            if not out.started:
                await internal_error()(scope, receive, out.send)

    async def _refuse(self, refusal: Refusal, visit: Visit, scope: Scope, receive: Receive, out: Outlet) -> None:
        if refusal.guessed:
            await asyncio.sleep(WRONG_TOKEN_PAUSE)
        await _as_response(refusal, visit)(scope, receive, out.send)

    def _refusal(self, visit: Visit, scope: Scope) -> Refusal | None:
        return (
            self._elsewhere(visit)
            or self._unknown(visit, scope)
            or self._cross_site(visit)
            or self._forgeable(visit)
            or _beyond_role(visit, scope)
        )

    def _elsewhere(self, visit: Visit) -> Refusal | None:
        """Refuse unknown host names: a foreign domain may point at this machine (DNS rebinding)."""
        name = host_name(visit.host)
        if name in self._hosts or (name and name.strip("[]") == visit.local):
            return None
        hint = "if the name is correct, add it to hosts in [admin]"
        return Refusal(421, "this server does not answer to that host name", hint)

    def _unknown(self, visit: Visit, scope: Scope) -> Refusal | None:
        """Find the role of the request, and put it into the scope for the routes."""
        role = self._role(visit)
        scope.setdefault("state", {})["role"] = role or ""
        if role or (visit.is_open and visit.bearer is None):
            return None
        if visit.bearer is not None:
            return Refusal(401, "the token is wrong", "the file named by token_file contains it", guessed=True)
        target = visit.path + (f"?{visit.query.decode('latin-1')}" if visit.query else "")
        login = f"/login?next={quote(target, safe='/')}" if visit.wants_page else ""
        return Refusal(401, "a token is required", "send Authorization: Bearer with the admin token", login=login)

    def _role(self, visit: Visit) -> str | None:
        if self._keys.open:
            return "admin"
        if visit.bearer is not None:
            return self._keys.role_of_token(visit.bearer)
        session = cookie_parser(visit.headers.get("cookie", "")).get(self._keys.cookie, "")
        return self._keys.role_of_session(session, time.time())

    def _cross_site(self, visit: Visit) -> Refusal | None:
        """Another site's page may link to us, but nothing else."""
        refusal = Refusal(403, "requests from other sites are refused")
        site = visit.headers.get("sec-fetch-site", "")
        if site:
            follows_link = not visit.changes and visit.headers.get("sec-fetch-mode") == "navigate"
            return None if site in ("same-origin", "none") or follows_link else refusal
        origin = visit.headers.get("origin")
        return None if origin is None or self._is_own(origin, visit) else refusal

    def _is_own(self, origin: str, visit: Visit) -> bool:
        """Whether a page of that origin is ours. A proxy in front of us may send another name in `host`."""
        return origin.lower().partition("://")[2] in {visit.host.lower(), *self._named}

    def _forgeable(self, visit: Visit) -> Refusal | None:
        """Require something that another site's form cannot send, even if no other header identifies the origin."""
        if not visit.changes or visit.is_form:
            return None
        if visit.bearer is None and visit.headers.get("x-requested-with") != "supervisor":
            return Refusal(
                403, "changes require the header X-Requested-With or Authorization", "send X-Requested-With: supervisor"
            )
        kind = media_type(visit.headers)
        if kind == JSON or visit.is_file or visit.is_unrouted or (kind is None and visit.length == 0):
            return None
        if visit.path.startswith("/run/"):
            if kind == "multipart/form-data":
                hint = "send the file itself, as in curl --data-binary @FILE --header 'Content-Type: image/jpeg'"
                return Refusal(415, "multipart forms are not accepted", hint)
            hint = "send Content-Type: application/json, or the media type of a file, such as image/jpeg"
            return Refusal(415, "the body must be JSON or a file", hint)
        return Refusal(415, "the body must be JSON", "send Content-Type: application/json")


def internal_error() -> Response:
    """The answer to an unexpected error."""
    return JSONResponse({"error": "internal error of the admin process", "hint": "see its log"}, 500)


def _beyond_role(visit: Visit, scope: Scope) -> Refusal | None:
    if not visit.changes or visit.is_form or scope["state"]["role"] == "admin":
        return None
    return Refusal(403, "this token allows reading only", "use the token of token_file")


def _own_name(settings: AdminSettings) -> Iterable[str]:
    """The address that we listen on, as a browser writes it."""
    if settings.address is None:
        return ()
    host = settings.address[0]
    return (f"[{host}]" if ":" in host else host,)


def host_name(host: str) -> str:
    """A `Host` without its port, in lower case; empty if it is malformed."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


async def _body(visit: Visit, receive: Receive) -> bytes | Refusal | None:
    """The body of the request; None if the client is gone. A body that is too large is not read to its end."""
    limit = LARGEST_FORM if visit.is_form else LARGEST_BODY
    too_large = Refusal(413, f"the body is too large; the limit is {limit} bytes")
    if visit.length == 0:
        return b""
    if visit.length is not None and visit.length > limit:
        return too_large
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return too_large
        if not message.get("more_body"):
            return b"".join(parts)


class Incoming:
    """The body of a request that is not read here, until it is whole."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_whole = self.is_whole or not message.get("more_body", False)
        return message


def _replay(body: bytes, receive: Receive) -> Receive:
    """Deliver the body once, then the later events of the connection."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _as_response(refusal: Refusal, visit: Visit) -> Response:
    if refusal.login:
        return RedirectResponse(refusal.login, 303)
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    if visit.wants_page:
        return PlainTextResponse(f"{refusal.error}\n{refusal.hint}\n", refusal.status, headers)
    content: dict[str, Any] = {"error": refusal.error}
    if refusal.hint:
        content["hint"] = refusal.hint
    return JSONResponse(content, refusal.status, headers)


class Outlet:
    """Adds the security headers to every answer."""

    def __init__(self, send: Send, visit: Visit) -> None:
        self._send = send
        # Static files must be revalidated, which costs only a 304, so that an upgrade shows immediately.
        self._keep = "no-cache" if visit.path.startswith("/static/") else "no-store"
        self.started = False
        self.body: Incoming | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", self._keep)
            headers.setdefault("date", formatdate(usegmt=True))
            if self.body is not None and not self.body.is_whole:
                headers["connection"] = "close"  # the rest of it is not read
        await self._send(message)
