"""Many connections that say nothing, or say it slowly, shut nobody out but themselves."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable

import pytest

from tests.samples import sampled
from tests.site_under_test import Site
from tests.web.client import ADMIN, WORK, Admin, admin_of

MakeSite = Callable[..., Site]
PRIVATE = "/api/admin/workers"


@pytest.fixture
def admin(make_site: MakeSite) -> Admin:
    site = make_site(ADMIN + WORK)
    return admin_of(site, site.start())


def slow(admin: Admin, number: int, text: bytes, source: str = "127.0.0.1") -> contextlib.ExitStack:
    """So many connections of an address, each of which has said this and no more."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            made = stack.enter_context(socket.create_connection(admin.address, timeout=20, source_address=(source, 0)))
            with contextlib.suppress(OSError):
                made.sendall(text)
        return stack.pop_all()


def get(admin: Admin, path: str, *, source: str, token: bool) -> int:
    connection = http.client.HTTPConnection(*admin.address, timeout=10, source_address=(source, 0))
    try:
        connection.request("GET", path, headers=admin.bearer if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.fault(77)
@pytest.mark.parametrize(
    "text",
    sampled(
        [
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nt",
            b"",
            b"GET / HTTP/1.1\r\nHost: loc",
        ],
        quick=1,
    ),
)
def test_five_hundred_slow_strangers_keep_nobody_out(admin: Admin, text: bytes) -> None:
    with slow(admin, 500, text):
        for source in ("127.0.0.1", "127.0.0.2"):
            assert get(admin, "/login", source=source, token=False) == 200
            assert get(admin, PRIVATE, source=source, token=True) == 200
