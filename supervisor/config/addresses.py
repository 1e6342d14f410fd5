"""Checks of the addresses, host names and files in `[admin]`."""

from __future__ import annotations

import re

from supervisor.domain.text import is_number

_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]")
_LAST_PORT = 65535


def listen(value: str) -> str:
    import ipaddress

    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.strip() or "\0" in path or path.endswith("/"):
            raise ValueError(f'{value!r} contains no file; write it like "unix:/run/job-supervisor/admin.sock"')
        return value
    host, colon, port = value.rpartition(":")
    try:
        ipaddress.ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else _version_4(host))
    except ValueError:
        colon = ""
    if not colon or not is_number(port) or int(port) > _LAST_PORT:
        raise ValueError(
            f'{value!r} is not an address; write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"'
        )
    return value


def _version_4(host: str) -> str:
    if ":" in host:
        raise ValueError("an IPv6 address must be in brackets")
    return "127.0.0.1" if host == "localhost" else host


def file(value: str) -> str:
    if not value.strip() or "\0" in value or value.endswith("/"):
        raise ValueError(f"{value!r} is not the name of a file")
    return value


def host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError(f"{value!r} is not a host name; write it like jobs.example.org, without a scheme or a port")
    return value.lower()
