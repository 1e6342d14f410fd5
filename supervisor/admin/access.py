"""The access middleware: who may come in, and with what. Every request passes it, whatever route it wants.

In this order: the host it was meant for, who is asking, whether another site made the browser ask, whether a
change was asked for as only a program or a page of ours can, whether this role may, how much was sent.
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

from supervisor.admin.errors import answer
from supervisor.admin.keys import Keys
from supervisor.config.settings import AdminSettings

LARGEST_BODY = 2 << 20  # bytes; a payload has 1 MiB at most
LARGEST_FORM = 16 << 10
WRONG_TOKEN_PAUSE = 0.5  # seconds that a wrong guess costs

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORMS = frozenset({"/login", "/logout"})
DATA = ("/api/", "/metrics", "/openapi.json", "/readyz", "/healthz")  # for programs: no page of these
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(?::\d*)?")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Nothing to other sites. With no-referrer, browsers would hide the origin of our own forms from us, too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why somebody is not let in. `guessed`: with a token that is none, for which they wait a little."""

    status: int
    error: str
    hint: str = ""
    guessed: bool = False
    login: str = ""  # where a browser is sent instead


class Visit:
    """One request, as far as the access middleware looks at it."""

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
        """Whether it is for everybody: nothing there tells of a job."""
        return self.path in ("/healthz", *FORMS) or self.path.startswith("/static/")

    @property
    def is_form(self) -> bool:
        return self.path in FORMS

    @property
    def wants_page(self) -> bool:
        """Whether a person with a browser is asking for a page."""
        html = "text/html" in self.headers.get("accept", "")
        return html and not self.changes and not self.path.startswith(DATA)

    @property
    def bearer(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    @property
    def length(self) -> int | None:
        """Bytes that will come, as far as the head says; None where it does not."""
        if "transfer-encoding" in self.headers:
            return None
        length = self.headers.get("content-length", "0")
        return int(length[:20]) if length.isdecimal() else 0


class AccessMiddleware:
    """ASGI middleware around everything. `hosts` are names by which we may be asked for, beside the usual ones."""

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
        body = await _body(visit, receive)
        if isinstance(body, Refusal):
            await self._refuse(body, visit, scope, receive, out)
        elif body is not None:
            await self._let_in(scope, _replay(body, receive), out)

    async def _let_in(self, scope: Scope, receive: Receive, out: Outlet) -> None:
        """An error that nobody has foreseen is told in a sentence; where it happened goes to the log alone."""
        try:
            await self._app(scope, receive, out.send)
        except Exception as error:
            told = answer(error, scope["path"])
            if not out.started:
                await told(scope, receive, out.send)

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
        """A name that is not ours: somebody's domain that points at this machine, with a page of theirs behind it."""
        name = host_name(visit.host)
        if name in self._hosts or (name and name.strip("[]") == visit.local):
            return None
        hint = "add the name to hosts in [admin] if it is meant"
        return Refusal(421, "this is not served under that host name", hint)

    def _unknown(self, visit: Visit, scope: Scope) -> Refusal | None:
        """Find out who it is, and put their role into the scope for the routes."""
        role = self._role(visit)
        scope.setdefault("state", {})["role"] = role or ""
        if role or (visit.is_open and visit.bearer is None):
            return None
        if visit.bearer is not None:
            return Refusal(401, "this is not the token", "it stands in the file that token_file names", guessed=True)
        target = visit.path + (f"?{visit.query.decode('latin-1')}" if visit.query else "")
        login = f"/login?next={quote(target, safe='/')}" if visit.wants_page else ""
        return Refusal(401, "a token is needed", "send Authorization: Bearer with the admin token", login=login)

    def _role(self, visit: Visit) -> str | None:
        if self._keys.open:
            return "admin"
        if visit.bearer is not None:
            return self._keys.role_of_token(visit.bearer)
        session = cookie_parser(visit.headers.get("cookie", "")).get(self._keys.cookie, "")
        return self._keys.role_of_session(session, time.time())

    def _cross_site(self, visit: Visit) -> Refusal | None:
        """Another site's page may link to us, and do nothing else."""
        refusal = Refusal(403, "requests from other sites are refused")
        site = visit.headers.get("sec-fetch-site", "")
        if site:
            follows_link = not visit.changes and visit.headers.get("sec-fetch-mode") == "navigate"
            return None if site in ("same-origin", "none") or follows_link else refusal
        origin = visit.headers.get("origin")
        return None if origin is None or self._is_own(origin, visit) else refusal

    def _is_own(self, origin: str, visit: Visit) -> bool:
        """Whether a page of that origin is ours; a proxy before us may have its own name for us in `host`."""
        return origin.lower().partition("://")[2] in {visit.host.lower(), *self._named}

    def _forgeable(self, visit: Visit) -> Refusal | None:
        """A change is asked for with what another site's form cannot send, even where nothing else tells."""
        if not visit.changes or visit.is_form:
            return None
        if visit.bearer is None and visit.headers.get("x-requested-with") != "supervisor":
            return Refusal(403, "changes need a header that forms cannot send", "send X-Requested-With: supervisor")
        kind = visit.headers.get("content-type")
        if kind is None and visit.length == 0:
            return None
        if (kind or "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "the body must be JSON", "send Content-Type: application/json")
        return None


def _beyond_role(visit: Visit, scope: Scope) -> Refusal | None:
    if not visit.changes or visit.is_form or scope["state"]["role"] == "admin":
        return None
    return Refusal(403, "this token may look and change nothing", "use the token of token_file")


def _own_name(settings: AdminSettings) -> Iterable[str]:
    """The address that we listen on, as a browser writes it."""
    if settings.address is None:
        return ()
    host = settings.address[0]
    return (f"[{host}]" if ":" in host else host,)


def host_name(host: str) -> str:
    """A `Host` without its port, in lower case; nothing for one that makes no sense."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


async def _body(visit: Visit, receive: Receive) -> bytes | Refusal | None:
    """What was sent with the request; None if the client has gone. One that is too large is not waited for."""
    limit = LARGEST_FORM if visit.is_form else LARGEST_BODY
    too_large = Refusal(413, f"the body is too large; {limit} bytes are taken")
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


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then what else happens to the connection."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _as_response(refusal: Refusal, visit: Visit) -> Response:
    if refusal.login:
        return RedirectResponse(refusal.login, 303)
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.status == 413:
        headers["connection"] = "close"  # the rest of it is not read
    if visit.wants_page:
        return PlainTextResponse(f"{refusal.error}\n{refusal.hint}\n", refusal.status, headers)
    content: dict[str, Any] = {"error": refusal.error}
    if refusal.hint:
        content["hint"] = refusal.hint
    return JSONResponse(content, refusal.status, headers)


class Outlet:
    """The way out: every answer gets what keeps a browser from doing anything else with it."""

    def __init__(self, send: Send, visit: Visit) -> None:
        self._send = send
        # What may be kept must be asked for anew, which costs no more than a 304: an upgrade shows at once.
        self._keep = "no-cache" if visit.path.startswith("/static/") else "no-store"
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", self._keep)
            headers.setdefault("date", formatdate(usegmt=True))
        await self._send(message)
