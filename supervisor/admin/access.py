"""The access middleware, which checks every request before any route.

It checks, in this order: the host name, the token or session, the origin of a browser's request, whether a change
was requested in a way that another site's form cannot, the role's permission, and the size of the body.
"""

from __future__ import annotations

import asyncio
import re
import time
from email.utils import formatdate
from math import inf
from pathlib import Path
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.admin.answers import Refused, refusal_of
from supervisor.admin.keys import Keys
from supervisor.config.settings import AdminSettings
from supervisor.telemetry import events

LARGEST_BODY = 2 << 20  # bytes; a payload has 1 MiB at most
LARGEST_FORM = 16 << 10
WRONG_TOKEN_PAUSE = 0.5  # seconds of delay after a wrong token

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORMS = frozenset({"/login", "/logout"})
DATA = ("/api/", "/run/", "/metrics", "/openapi.json", "/readyz", "/healthz")  # never answered with a page
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(?::\d*)?")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_JSON = "application/json"
_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")  # another site's form can send

BEARER = {"www-authenticate": "Bearer"}
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


class AccessMiddleware:
    """ASGI middleware around the application. It accepts the host names in `hosts` beside the usual ones."""

    def __init__(self, app: ASGIApp, keys: Keys, settings: AdminSettings) -> None:
        self._app = app
        self._keys = keys
        self._named = frozenset(settings.hosts)
        self._file = "/".join((settings.token_file or Path("token_file")).parts[-2:])
        own = settings.address[0] if settings.address is not None else "localhost"  # as a browser writes it:
        self._hosts = frozenset({*LOOPBACK, *settings.hosts, f"[{own}]" if ":" in own else own})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        request = Request(scope)
        exchange = HttpExchange(request, receive, send)
        try:
            await self._check(request)
            if exchange.too_large:
                raise Refused(413, "the body is too large")
            await self._app(scope, exchange.receive, exchange.send)
        except Refused as refusal:
            response: Response = refusal.response()
            if refusal.status_code == 401 and _bearer(request.headers) is None and wants_page(request):
                query = scope["query_string"].decode("latin-1")
                target = scope["path"] + (f"?{query}" if query else "")
                response = RedirectResponse(f"/login?next={quote(target, safe='/')}", 303)
            await response(scope, receive, exchange.send)
        except Exception as error:  # its traceback goes only to the log
            events(process="admin").error("request_failed", path=scope["path"] or None, exc_info=error)
            if not exchange.answered:
                await refusal_of(request, error).response()(scope, receive, exchange.send)

    async def _check(self, request: Request) -> None:
        """Raises Refused. Puts the role of the request into its scope, for the routes."""
        path, headers = request.scope["path"], request.headers
        host, changes, is_form = headers.get("host", ""), request.method not in SAFE, path in FORMS
        bearer = _bearer(headers)
        # A foreign domain may point at this machine (DNS rebinding).
        name, local = host_name(host), (request.scope.get("server") or ("",))[0].removeprefix("::ffff:")
        if name not in self._hosts and not (name and name.strip("[]") == local):
            hint = "if the name is correct, add it to hosts in [admin]"
            raise Refused(421, "this server does not answer to that host name", hint)

        role = self._role(request, bearer)
        request.state.role = role or ""
        if role is None and bearer is not None:
            await asyncio.sleep(WRONG_TOKEN_PAUSE)
            hint = f"the right token is in {self._file} (token_file in [admin])"
            raise Refused(401, "the token is wrong", hint, headers=BEARER)
        if role is None and not (is_form or path == "/healthz" or path.startswith("/static/")):
            hint = f"send Authorization: Bearer with the admin token, which is in {self._file}"
            raise Refused(401, "a token is required", hint, headers=BEARER)

        if self._is_from_another_site(request, host):
            raise Refused(403, "requests from other sites are refused")
        if not changes or is_form:
            return
        # Something that another site's form cannot send, even if no other header identifies the origin.
        if bearer is None and headers.get("x-requested-with") != "supervisor":
            hint = "send X-Requested-With: supervisor"
            raise Refused(403, "changes require the header X-Requested-With or Authorization", hint)
        kind = media_type(headers)
        empty = kind is None and declared_length(headers) == 0
        if not (kind == _JSON or empty or is_file(request.method, path, headers)):
            hint = "send Content-Type: application/json; for POST /run also that of a file, such as image/jpeg"
            raise Refused(415, "the body must be JSON, or for POST /run a file", hint)
        if role != "admin":
            raise Refused(403, "this token allows reading only", "use the token of token_file")

    def _role(self, request: Request, bearer: str | None) -> str | None:
        if self._keys.open:
            return "admin"
        if bearer is not None:
            return self._keys.role_of_token(bearer)
        return self._keys.role_of_session(request.cookies.get(self._keys.cookie, ""), time.time())

    def _is_from_another_site(self, request: Request, host: str) -> bool:
        """Another site's page may link to us, but nothing else. A proxy in front of us may send another name in
        `host`.
        """
        headers = request.headers
        if site := headers.get("sec-fetch-site", ""):
            follows_link = request.method in SAFE and headers.get("sec-fetch-mode") == "navigate"
            return site not in ("same-origin", "none") and not follows_link
        origin = headers.get("origin")
        return origin is not None and origin.lower().partition("://")[2] not in {host.lower(), *self._named}


def wants_page(request: Request) -> bool:
    """Whether a browser requests a page."""
    html = "text/html" in request.headers.get("accept", "")
    return html and request.method in SAFE and not request.scope["path"].startswith(DATA)


def host_name(host: str) -> str:
    """A `Host` without its port, in lower case; empty if it is malformed."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


def media_type(headers: Headers) -> str | None:
    """The media type of a body, without its parameters; None if the request does not say it."""
    kind = headers.get("content-type")
    return None if kind is None else kind.partition(";")[0].strip().lower()


def is_file(method: str, path: str, headers: Headers) -> bool:
    """Whether the body of a request is a file, by what its head says."""
    kind = media_type(headers)
    return method == "POST" and path.startswith("/run/") and kind not in (None, _JSON, *_FORM_TYPES)


def declared_length(headers: Headers) -> int | None:
    """The length of a body in bytes as declared in the head; None if it is not declared."""
    length = headers.get("content-length", "0")
    return None if "transfer-encoding" in headers or not length.isdecimal() else int(length[:20])


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class HttpExchange:
    """A request and its answer as they pass: the body is limited, and the answer gets the security headers.

    A body that is too large is not read to its end. The route itself limits a file.
    """

    def __init__(self, request: Request, receive: Receive, send: Send) -> None:
        path, length = request.scope["path"], declared_length(request.headers)
        self._receive = receive
        self._send = send
        # Static files must be revalidated, which costs only a 304, so that an upgrade shows immediately.
        self._keep = "no-cache" if path.startswith("/static/") else "no-store"
        limit = LARGEST_FORM if path in FORMS else LARGEST_BODY
        self._left = inf if is_file(request.method, path, request.headers) else limit
        self._whole = length == 0
        self.too_large = length is not None and length > self._left
        self.answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._whole = self._whole or not message.get("more_body", False)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise Refused(413, "the body is too large")  # answered by the application, which is reading
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered = True
            headers = MutableHeaders(scope=message)
            added = {"cache-control": self._keep, "date": formatdate(usegmt=True)} | HEADERS
            for name, value in added.items():
                headers.setdefault(name, value)
            if not self._whole:
                headers["connection"] = "close"  # the rest of it is not read
        await self._send(message)
