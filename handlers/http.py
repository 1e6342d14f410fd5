"""A webhook: an HTTP request with a signature, that is repeated until the receiver has accepted it.

    [pools.webhook]
    handler = "handlers.http:send"
    options = { url = "https://example.org/hooks", secret_env = "HOOK_SECRET" }

A job runs at least once, so a receiver may get a request twice, if the worker dies after the answer. Both have the same
`Idempotency-Key`.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from handlers.connections import TRANSIENT, Route, host_of, opener
from handlers.options import HttpOptions, checked_by, read
from supervisor import Fail, Retry

if TYPE_CHECKING:
    from supervisor import Context

_KEYS = frozenset({"url", "method", "headers", "body", "text", "timeout", "alert"})
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "user-agent"})
_TRANSIENT = TRANSIENT | {409}  # what a receiver answers that still works on an earlier attempt with the same key
_LONGEST_WAIT = 7 * 86_400.0  # seconds that a receiver may ask for
_KEPT = 1000  # characters of an answer that are kept in the result


@checked_by(HttpOptions)
def send(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """`{"url": "https://…", "method": "POST", "headers": {…}, "body": any JSON}` → status and the start of the answer.

    `text` is sent as it is, in place of `body`; `timeout` is seconds, at most those of the options.
    `url` is that of the options if there is one: then the payload must not have any. The body of a job that an alert
    has enqueued is, without one of its own, the facts of the alert.

    Raises Fail for an invalid payload or option, an address that is not allowed, a certificate that is not accepted, a
    redirect that is not followed and every other answer of 3xx and 4xx; Retry for no connection, a timeout, 408, 409,
    425, 429 and 5xx, after the time that the receiver asks for with `Retry-After`. Messages name the host and never the
    path, which may hold secrets.
    """
    try:
        options = read(HttpOptions, ctx.options)
    except ValueError as error:
        raise Fail(str(error)) from None
    if not isinstance(payload, dict) or (unknown := sorted(payload.keys() - _KEYS)):
        what = f"unknown key {unknown[0]!r}" if isinstance(payload, dict) else "it is no object"
        raise Fail(f"the payload: {what}; it has url, method, headers, body, text and timeout")
    url = _url(payload, options)
    request = urllib.request.Request(url, method=_method(payload, options))  # noqa: S310 - the opener knows no other scheme
    for name, value in _headers(payload, options).items():
        request.add_unredirected_header(name, value)  # a credential is for this address alone
    request.add_header("User-Agent", "job-supervisor")
    request.add_header("Idempotency-Key", ctx.idempotency_key)
    _add_body(request, payload)
    _sign(request, options, ctx.idempotency_key)
    return _exchange(request, host_of(url), options, _timeout(payload, options))


@checked_by(HttpOptions)
def post(payload: object, ctx: Context) -> dict[str, Any]:
    """The whole payload is the body: as what follows another job (`on_done`, `on_failed`) has it. The rest is said by
    the options, as for `send`.
    """
    return send({"body": payload}, ctx)


def _exchange(request: urllib.request.Request, host: str, options: HttpOptions, timeout: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    route = Route(deadline, private=options.allow_private_hosts, hosts=options.allowed_hosts)
    redirects = options.max_redirects if request.get_method() == "GET" else 0
    try:
        with opener(route, redirects).open(request, timeout=timeout) as response:
            return {"status": response.status, "body": _answer(response, route, host, options.max_bytes)}
    except urllib.error.HTTPError as error:
        with error:
            raise _verdict(error, host) from None
    except http.client.InvalidURL:
        raise Fail("the url cannot be used: a bad port, or a character that must be percent-encoded") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise Fail(f"{host}: its certificate is not accepted: {reason.verify_message}") from None
        if "unknown url type" in str(reason):
            raise Fail(f"{host} redirects to another scheme than https or http") from None
        raise Retry(f"no answer from {host}: {reason or type(error).__name__}") from None
    finally:
        route.close()


def _answer(response: Any, route: Route, host: str, most: int) -> str:
    """The start of the answer. What the receiver has accepted stays so, however long its answer is or takes."""
    body = bytearray()
    try:
        while len(body) < most and route.left() > 0 and (part := response.read1(min(most, 1 << 16))):
            body += part
    except (OSError, http.client.HTTPException):
        pass  # the status has arrived, and it counts
    return bytes(body[:most]).decode("utf-8", "replace")[:_KEPT]


def _verdict(error: urllib.error.HTTPError, host: str) -> Exception:
    said = f"{host} answered {error.code} {error.reason}".strip()
    if 300 <= error.code < 400:
        return Fail(f"{said}, which is not followed")
    if error.code in _TRANSIENT or error.code >= 500:
        return Retry(said, after=_retry_after(error.headers.get("Retry-After")))
    return Fail(said)


def _retry_after(value: str | None) -> float | None:
    """Seconds, or None if there is no valid wish. Both forms of RFC 9110: seconds and a date."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", value.strip()):
        return min(float(value), _LONGEST_WAIT)
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, at - time.time()), _LONGEST_WAIT)


def _sign(request: urllib.request.Request, options: HttpOptions, key: str) -> None:
    if not options.secret_env:
        return
    secret = os.environ.get(options.secret_env)
    if not secret:
        raise Fail(f"options.secret_env: the environment variable {options.secret_env} is not set")
    stamp, body = str(int(time.time())), request.data or b""
    assert isinstance(body, bytes)
    if options.signature == "standard":
        headers = _standard(secret, options.secret_env, key, stamp, body)
    else:
        text = "\n".join((request.get_method(), request.full_url, stamp, "")).encode() + body
        signature = "sha256=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
        headers = {"X-Timestamp": stamp, "X-Signature": signature}
    for name, value in headers.items():
        request.add_unredirected_header(name, value)


def _standard(secret: str, variable: str, key: str, stamp: str, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks 1.0.0 (standardwebhooks.com), symmetric. The secret is base64, with the
    prefix `whsec_` or without.
    """
    try:
        known = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise Fail(f"options.secret_env: {variable} is not a secret of Standard Webhooks, which is base64") from None
    digest = hmac.new(known, f"{key}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {"Webhook-Id": key, "Webhook-Timestamp": stamp, "Webhook-Signature": signature}


def _timeout(payload: dict[str, Any], options: HttpOptions) -> float:
    seconds = payload.get("timeout", options.timeout)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= options.timeout:
        raise Fail(f"timeout must be seconds, more than 0 and at most the {options.timeout:g} of the pool's options")
    return float(seconds)


def _url(payload: dict[str, Any], options: HttpOptions) -> str:
    url = payload.get("url", options.url)
    if options.url and url != options.url:
        raise Fail("the payload must not have a url of its own: the pool's options have one")
    if not isinstance(url, str) or not url:
        raise Fail('there is no url: give {"url": "https://…"}, or options = { url = "https://…" }')
    if url != url.strip() or any(ord(char) <= 0x20 or ord(char) == 0x7F for char in url):
        raise Fail("the url cannot be used: it contains a space or a control character")
    host_of(url)
    parts = urllib.parse.urlsplit(url)
    try:
        _ = parts.port
    except ValueError as error:
        raise Fail(f"the url cannot be used: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise Fail("the url cannot be used: it must begin with https:// or http://")
    if parts.username is not None:
        raise Fail("the url cannot be used: it contains a user name; use a header")
    return url


def _method(payload: dict[str, Any], options: HttpOptions) -> str:
    method = payload.get("method", options.method)
    if method not in _METHODS:
        raise Fail(f"method must be one of {', '.join(_METHODS)}")
    return str(method)


def _headers(payload: dict[str, Any], options: HttpOptions) -> dict[str, str]:
    """Those of the options win: a payload cannot replace a credential of the pool."""
    headers = payload.get("headers", {})
    if not isinstance(headers, dict):
        raise Fail("headers must be an object")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _OURS or name.lower().startswith(("x-signature", "webhook-")):
            raise Fail(f"the header {name!r} cannot be set")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise Fail(f"the header {name} must be a printable ASCII text")
    found = {name.title(): value for name, value in headers.items()}
    for name, variable in options.headers_env.items():
        value = os.environ.get(variable)
        if not value:
            raise Fail(f"options.headers_env.{name}: the environment variable {variable} is not set")
        found[name.title()] = value
    return found


def _add_body(request: urllib.request.Request, payload: dict[str, Any]) -> None:
    if "body" in payload and "text" in payload:
        raise Fail("the payload has both a body and a text; give one of them")
    text = payload.get("text")
    if request.get_method() in ("GET", "DELETE"):
        if "body" in payload or "text" in payload:
            raise Fail(f"{request.get_method()} has no body")
        return
    if text is not None and not isinstance(text, str):
        raise Fail("text must be a string")
    try:
        request.data = (_json(payload.get("body", payload.get("alert"))) if text is None else text).encode()
    except UnicodeEncodeError:
        raise Fail("the body has a lone surrogate, which cannot be sent as UTF-8") from None
    if not request.has_header("Content-type"):
        request.add_header("Content-Type", "application/json" if text is None else "text/plain; charset=utf-8")


def _json(body: Any) -> str:
    return "" if body is None else json.dumps(body, ensure_ascii=False)
