"""`[admin]`: whether it can be served, who may come in, and whether it answers."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.settings import AdminSettings, Settings
from supervisor.doctor.finding import Finding, fault, good, note, warning

_LIBRARIES = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
_PATIENCE = 2.0  # seconds for an answer


def admin(settings: Settings) -> list[Finding]:
    """Nothing for a configuration without."""
    if settings.admin is None:
        return []
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        advice = "pip install 'job-supervisor[admin]'"
        return [fault("admin", f"[admin] is configured, and {', '.join(missing)} cannot be imported", advice)]
    found = [*_remote(settings.admin), *_tokens(settings.admin), *_socket(settings.admin)]
    return [*found, _answer(settings.admin)]


def _remote(admin: AdminSettings) -> Iterator[Finding]:
    if admin.unix_path is not None:
        return
    host = admin.listen.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        yield warning(
            "admin",
            f"it listens on {admin.listen}, which others can reach, and its token crosses the network as it is",
            "listen on 127.0.0.1 or a Unix socket, with TLS by a reverse proxy (deploy/caddy, deploy/nginx)",
        )


def _tokens(admin: AdminSettings) -> Iterator[Finding]:
    for key, path in (("token_file", admin.token_file), ("read_token_file", admin.read_token_file)):
        if path is not None:
            yield from _token(key, path)


def _token(key: str, path: Path) -> Iterator[Finding]:
    try:
        found = path.stat()
    except OSError as error:
        # Without the file there is no token to compare with; whether one is made is the admin process's business.
        yield note("admin", f"{key}: {path}: {error.strerror}", "`supervisor run` says what it makes of that")
        return
    if not stat.S_ISREG(found.st_mode):
        yield fault("admin", f"{key}: {path} is no file", "correct the path")
    elif not os.access(path, os.R_OK):
        yield fault("admin", f"{key}: this user may not read {path}", "run this as the service's user, or change owner")
    elif found.st_mode & 0o077:
        yield fault("admin", f"{key}: others may read {path} (mode {found.st_mode & 0o777:o})", f"chmod 0600 {path}")
    elif found.st_size == 0:
        yield fault("admin", f"{key}: {path} is empty", "write a long random token into it, or delete it")


def _socket(admin: AdminSettings) -> Iterator[Finding]:
    path = admin.unix_path
    if path is None:
        return
    if not path.parent.is_dir():
        advice = "make it, or let systemd do so: RuntimeDirectory= in the unit"
        yield warning("admin", f"{path.parent}: there is no such folder for the socket", advice)
    elif path.exists() and path.stat().st_mode & 0o007:
        fact = f"{path}: every user of this machine may use the socket, which asks for no token"
        yield fault("admin", fact, f"chmod o= {path}")


def _answer(admin: AdminSettings) -> Finding:
    """Whether somebody answers on /healthz."""
    try:
        with contextlib.closing(_connected(admin)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            status = connection.recv(64).split(b" ")[1:2]
    except OSError as error:
        return note(
            "admin",
            f"{admin.listen} does not answer: {error.strerror or error}",
            "nothing, if no supervisor is running with this configuration; else see its log for admin",
        )
    if status != [b"200"]:
        return warning("admin", f"{admin.listen}: something answers, but not as it should", "see who listens there")
    return good("admin", f"{admin.listen} answers")


def _connected(admin: AdminSettings) -> socket.socket:
    if admin.unix_path is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(str(admin.unix_path))
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = admin.listen.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE)
