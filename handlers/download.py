"""A limited download for handlers whose pool allows URLs. `handlers.connections` says what it may reach."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any

from handlers.connections import TRANSIENT, Route, host_of, opener
from handlers.options import PictureOptions
from supervisor import Fail, Retry

_CHUNK = 64 << 10
_REDIRECTS = 5


def fetch(url: str, options: PictureOptions) -> bytes:
    """The body at `url`, at most `options.max_bytes` long and within `options.url_timeout` seconds in all.

    Raises Fail for permanent errors (a bad URL, a private address, 404, too many bytes) and Retry for temporary
    ones (no connection, a timeout, 429, 5xx). Messages name the host, never the path or the query,
    which may hold secrets.
    """
    host = host_of(url)
    deadline = time.monotonic() + options.url_timeout
    route = Route(deadline, private=options.allow_private_hosts)
    request = urllib.request.Request(url.strip(), headers={"User-Agent": "job-supervisor"})  # noqa: S310 - the opener knows no other scheme
    try:
        with opener(route, _REDIRECTS).open(request, timeout=options.url_timeout) as response:
            return _read(response, host, options.max_bytes, route)
    except urllib.error.HTTPError as error:
        error.close()
        verdict = Retry if error.code in TRANSIENT else Fail
        raise verdict(f"{host} answered {error.code} {error.reason}") from None
    except http.client.InvalidURL:
        raise Fail("the url cannot be used: a bad port, or a character that must be percent-encoded") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Retry(f"no picture from {host}: {reason or type(error).__name__}") from None
    finally:
        route.close()


def _read(response: Any, host: str, max_bytes: int, route: Route) -> bytes:
    body = bytearray()
    # read1: returns what has arrived, so that a slow server cannot exceed the deadline.
    while chunk := response.read1(_CHUNK):
        body += chunk
        if len(body) > max_bytes:
            raise Fail(f"too large: {host} sends more than {max_bytes} bytes")
        if route.left() <= 0:
            raise Retry(f"no picture from {host}: the download took too long")
    if route.is_over:
        raise Retry(f"no picture from {host}: the download took too long")
    return bytes(body)
