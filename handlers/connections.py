"""HTTP connections of shipped handlers: to addresses that are allowed, directly and until a deadline.

A payload may come from an untrusted source, and must not make a worker reach what only this machine or its network can
reach (server-side request forgery). So requests use HTTP and HTTPS only, also after a redirect, connect directly and
not through a proxy, and reject addresses that are not public. A name is resolved first, each of its addresses is
checked, and the connection uses exactly the address that was checked: no other address receives anything, not even a
connection attempt, and a name that resolves differently a second time has no effect. Each redirect is checked like the
first address.
"""

from __future__ import annotations

import http.client
import ipaddress
import queue
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Collection
from typing import Any

from supervisor import Fail

# Answers that mean "not now" (RFC 9110, 6585, 8470); every other 4xx is final.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

Address = tuple[int, tuple[Any, ...]]
"""A family of the socket module, and what its `connect` takes."""


def host_of(url: str) -> str:
    """Raises Fail for a URL that cannot be used."""
    try:
        host = urllib.parse.urlsplit(url.strip()).hostname
    except ValueError as error:
        raise Fail(f"the url cannot be used: {error}") from None
    if not host or not url.isascii():
        raise Fail("the url cannot be used: it needs a host and, outside ASCII, percent-encoding")
    return host


def opener(route: Route, redirects: int) -> urllib.request.OpenerDirector:
    """Like `urllib.request.build_opener`, without its handlers for files, FTP and data. `redirects` is how many are
    followed; with 0 an answer of 3xx is an HTTPError.
    """
    made = urllib.request.OpenerDirector()
    followed = [_Redirects(redirects)] if redirects else []
    for handler in (
        urllib.request.ProxyHandler({}),
        _HTTPHandler(route),
        _HTTPSHandler(route),
        *followed,
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made


class Route:
    """How a request reaches its host: only allowed addresses, and only until the deadline (monotonic seconds).

    `hosts` are the only ones it may reach, if there are any; `*.example.org` stands for all subdomains.

    A socket's timeout applies to each step alone: a server that sends one byte a second would take as
    long as it likes. So a timer closes the connection when the time is up.
    """

    def __init__(self, deadline: float, *, private: bool, hosts: Collection[str] = ()) -> None:
        self._deadline = deadline
        self._private = private
        self._hosts = hosts
        self._timer: threading.Timer | None = None
        self.is_over = False

    def left(self) -> float:
        return self._deadline - time.monotonic()

    def connect(self, host: str, port: int) -> socket.socket:
        """Raises Fail for a host that is not allowed or has an address that is not public; OSError if it cannot be
        reached.
        """
        if self._hosts and not any(_matches(host, allowed) for allowed in self._hosts):
            raise Fail(f"{host} is not one of the allowed_hosts")
        failure: OSError | None = None
        for family, address in self._judged(host, port):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(max(0.001, self.left()))
                connection.connect(address)
            except OSError as error:
                connection.close()
                failure = error
            else:
                self._watch(connection)
                return connection
        raise failure or OSError(f"{host} has no address")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _judged(self, host: str, port: int) -> list[Address]:
        found = self._looked_up(host, port)
        for _, address in found:
            if not self._private and not _is_public(str(address[0])):
                raise Fail(f"{host} is not a public address: allow it with options = {{ allow_private_hosts = true }}")
        return found

    def _looked_up(self, host: str, port: int) -> list[Address]:
        """On a separate thread: the C library's look-up has no timeout."""
        answers: queue.SimpleQueue[list[Address] | Exception] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                answers.put([(family, address) for family, _, _, _, address in found])
            except (OSError, UnicodeError) as error:
                answers.put(error)

        threading.Thread(target=look_up, daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.001, self.left()))
        except queue.Empty:
            raise TimeoutError("its name was not resolved in time") from None
        if isinstance(answer, UnicodeError):
            raise Fail("the url cannot be used: its host is not a valid name")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _watch(self, connection: socket.socket) -> None:
        self.close()
        again = connection.dup()  # the number of a closed descriptor may be in use again by then

        def end() -> None:
            self.is_over = True
            try:
                again.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

        self._timer = _Timer(max(0.001, self.left()), end, again)
        self._timer.start()


class _Timer(threading.Timer):
    """A timer that keeps a connection open until it has finished."""

    def __init__(self, seconds: float, end: Any, connection: socket.socket) -> None:
        super().__init__(seconds, end)
        self.daemon = True
        self._connection = connection

    def run(self) -> None:
        super().run()
        self._connection.close()


def _matches(host: str, allowed: str) -> bool:
    host, allowed = host.lower().rstrip("."), allowed.lower().rstrip(".")
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.sixtofour is not None or address in _NAT64:
            inner = address.sixtofour or ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
            return inner.is_global and not inner.is_multicast
    return address.is_global and not address.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A limited number; the connection of each is checked when it is made."""

    max_repeats = 2

    def __init__(self, most: int) -> None:
        self.max_redirections = most  # type: ignore[misc]  # urllib reads it from the instance

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Raises Fail for a redirect to another scheme, which no further attempt can follow."""
        try:
            scheme = urllib.parse.urlsplit(headers.get("location") or headers.get("uri") or "").scheme
        except ValueError:
            scheme = "an invalid address"
        if scheme not in ("", "http", "https"):
            fp.close()
            raise Fail(f"{host_of(req.full_url)} redirects to {scheme[:20]}; only http and https are followed")
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _HTTPConnection(http.client.HTTPConnection):
    def __init__(self, host: str, *, route: Route, **options: Any) -> None:
        super().__init__(host, **options)
        self._route = route

    def connect(self) -> None:
        self.sock = self._route.connect(self.host, self.port)


class _HTTPSConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, route: Route, **options: Any) -> None:
        super().__init__(host, **options)
        self._route = route

    def connect(self) -> None:
        context: Any = self._context  # type: ignore[attr-defined]  # made by the parent
        self.sock = context.wrap_socket(self._route.connect(self.host, self.port), server_hostname=self.host)


class _HTTPHandler(urllib.request.HTTPHandler):
    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route = route

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPConnection, request, route=self._route)  # type: ignore[arg-type]


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route = route

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPSConnection, request, route=self._route)  # type: ignore[arg-type]
