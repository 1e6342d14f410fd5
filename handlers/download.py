"""A bounded download for handlers whose pool allows URLs.

What a payload names may come from a stranger, so the fetch speaks HTTP and HTTPS only (also after a
redirect), goes directly and not through a proxy, and refuses addresses that are not public. It looks at
the peer of the open connection rather than at the name, so a name that resolves differently a second time
gains nothing.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from handlers.options import PictureOptions
from supervisor import Fail, Retry

# Answers that mean "not now" (RFC 9110, 6585, 8470); every other 4xx is final.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_CHUNK = 64 << 10


def fetch(url: str, options: PictureOptions) -> bytes:
    """The body at `url`, at most `options.max_bytes` long and within `options.url_timeout` seconds.

    Raises Fail for what stays so (a bad URL, a private address, 404, too many bytes) and Retry for what
    may pass (no connection, a time-out, 429, 5xx). Messages name the host, never the path or the query,
    which may hold secrets.
    """
    host = _host(url)
    deadline = time.monotonic() + options.url_timeout
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if options.allow_private_hosts:
        handlers += [urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()]
    else:
        handlers += [_PublicHTTPHandler(), _PublicHTTPSHandler()]
    opener = _opener(handlers)
    request = urllib.request.Request(url.strip(), headers={"User-Agent": "job-supervisor"})  # noqa: S310 - the opener knows no other scheme
    try:
        with opener.open(request, timeout=options.url_timeout) as response:
            return _read(response, host, options.max_bytes, deadline)
    except urllib.error.HTTPError as error:
        error.close()
        verdict = Retry if error.code in _TRANSIENT else Fail
        raise verdict(f"{host} answered {error.code} {error.reason}") from None
    except http.client.InvalidURL:
        raise Fail("the url cannot be used: a bad port, or a character that must be percent-encoded") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Retry(f"no picture from {host}: {reason or type(error).__name__}") from None


def _host(url: str) -> str:
    try:
        host = urllib.parse.urlsplit(url.strip()).hostname
    except ValueError as error:
        raise Fail(f"the url cannot be used: {error}") from None
    if not host or not url.isascii():
        raise Fail("the url cannot be used: it needs a host and, outside ASCII, percent-encoding")
    return host


def _opener(handlers: list[urllib.request.BaseHandler]) -> urllib.request.OpenerDirector:
    """Like `urllib.request.build_opener`, without its handlers for files, FTP and data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        *handlers,
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _read(response: Any, host: str, max_bytes: int, deadline: float) -> bytes:
    body = bytearray()
    # read1: whatever has arrived, so that a trickle cannot hold us beyond the deadline.
    while chunk := response.read1(_CHUNK):
        body += chunk
        if len(body) > max_bytes:
            raise Fail(f"too large: {host} sends more than {max_bytes} bytes")
        if time.monotonic() > deadline:
            raise Retry(f"no picture from {host}: the download took too long")
    return bytes(body)


def _refuse_private(connection: socket.socket, host: str) -> None:
    address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if not (mapped or address).is_global:
        connection.close()
        raise Fail(f"{host} is no public address: allow it with options = {{ allow_private_hosts = true }}")


class _PublicHTTPConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _refuse_private(self.sock, self.host)


class _PublicHTTPSConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _refuse_private(self.sock, self.host)


class _PublicHTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PublicHTTPConnection, request)


class _PublicHTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PublicHTTPSConnection, request)
