"""`[admin]`: libraries, access, and whether the server answers."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping

from supervisor.config.settings import AdminSettings, Settings
from supervisor.domain.errors import StoreError
from supervisor.engine import open_engine
from supervisor.ops import tokens
from supervisor.ops.diagnosis import Finding, fault, good, note, warning
from supervisor.ops.posted import registered

_LIBRARIES = ("fastapi", "jinja2", "prometheus_client", "uvicorn")
_PATIENCE = 2.0  # seconds for an answer


def admin(settings: Settings) -> list[Finding]:
    """No findings without `[admin]`."""
    if settings.admin is None:
        return []
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        advice = "pip install './job-supervisor[admin]'"
        return [fault("admin", f"[admin] is configured, but {', '.join(missing)} cannot be imported", advice)]
    found = [*_remote(settings.admin), *_tokens(settings, settings.admin), *_socket(settings.admin)]
    return [*found, _answer(settings, settings.admin)]


def _remote(admin: AdminSettings) -> Iterator[Finding]:
    address = admin.address
    if address is None:
        return
    if not ipaddress.ip_address(address[0]).is_loopback:
        yield warning(
            "admin",
            f"it listens on {admin.listen}, which other machines can reach, and the token is sent unencrypted",
            "listen on 127.0.0.1 or a Unix socket, behind a reverse proxy with TLS (deploy/caddy, deploy/nginx)",
        )


def _tokens(settings: Settings, admin: AdminSettings) -> Iterator[Finding]:
    """`run` creates a missing file, with the default name if none is configured."""
    if admin.token_file is None and admin.unix_path is None:
        usual = open_engine(settings.database).database.folder / tokens.DEFAULT_NAME
        settings = settings._replace(admin=admin._replace(token_file=usual))
    for key, problem in tokens.problems(settings).items():
        refused = problem.endswith(os.strerror(errno.EACCES))
        advice = "run `supervisor doctor` as the user of the service" if refused else "fix the file, then reload"
        yield fault("admin", f"{key}: {problem}", advice)


def _socket(admin: AdminSettings) -> Iterator[Finding]:
    path = admin.unix_path
    if path is None:
        return
    if not path.parent.is_dir():
        advice = "create it, or let systemd create it: RuntimeDirectory= in the unit"
        yield warning("admin", f"{path.parent}: the folder for the socket does not exist", advice)
    elif path.exists() and path.stat().st_mode & 0o007:
        fact = f"{path}: every user of this machine can use the socket, which requires no token"
        yield fault("admin", fact, f"chmod o= {path}")


def _answer(settings: Settings, admin: AdminSettings) -> Finding:
    """Whether /healthz answers, and whether it is our admin process."""
    try:
        with contextlib.closing(_connected(admin)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            status = connection.recv(64).split(b" ")[1:2]
    except OSError as error:
        return note(
            "admin",
            f"{admin.listen} does not answer: {error.strerror or error}",
            "if a supervisor is running with this configuration, search its log for admin",
        )
    if status != [b"200"]:
        return warning(
            "admin", f"{admin.listen}: the answer is not from an admin process", "check which program listens there"
        )
    if not _served(settings):
        advice = "check which program listens there, or set another address: listen in [admin]"
        return warning("admin", f"{admin.listen} answers, but no supervisor of this database listens there", advice)
    return good("admin", f"{admin.listen} answers")


def _served(settings: Settings) -> bool:
    """Whether a running supervisor of this database has, or may have, an admin process."""
    engine = open_engine(settings.database)
    if not engine.database.exists():
        return False
    try:
        operations = engine.operations()
    except StoreError:
        return True  # reported by another check
    with contextlib.closing(operations):
        boards = [board for _, alive, board in registered(operations) if alive is not False]
    return any(board is None or _has_admin(board.supervisor_status().get("admin")) for board in boards)


def _has_admin(news: object) -> bool:
    return isinstance(news, Mapping) and news.get("pid") is not None and not news.get("problem")


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
    return socket.create_connection(admin.address or ("", 0), timeout=_PATIENCE)
