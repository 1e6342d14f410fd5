"""PgBouncer in transaction mode in front of a PostgreSQL server, for tests.

Its sessions take turns, so that what one transaction leaves in its session is met by others at once.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.postgres_server import USERS, NoServerError

_PATIENCE = 30.0  # seconds
_SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "any",
    "pool_mode": "transaction",
    "server_round_robin": 1,
    "max_client_conn": 500,
}


class Pooler:
    """A PgBouncer that runs. `url` is that of the database, through it."""

    def __init__(self, direct: str, port: int, log: Path) -> None:
        parts = urlsplit(direct)
        self.direct = direct
        self.url = parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{port}").geturl()
        self._log = log

    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def pooler(direct: str, size: int = 4, **settings: object) -> Iterator[Pooler]:
    """In front of the server of a URL, with so many sessions. Raises NoServerError if PgBouncer is not installed."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise NoServerError("this test needs pgbouncer: apt-get install pgbouncer")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, port = Path(name), _free_port()
        folder.chmod(0o755)
        sizes = {"default_pool_size": size, "min_pool_size": size, "listen_port": port}
        lines = "".join(f"{key} = {value}\n" for key, value in {**_SETTINGS, **sizes, **settings}.items())
        ini, log = folder / "pgbouncer.ini", folder / "log"
        ini.write_text(f"[databases]\n* = {_server(direct)}\n[pgbouncer]\n{lines}")
        with log.open("wb") as words:
            process = subprocess.Popen(
                [*_as_another_user(), program, str(ini)], stdin=subprocess.DEVNULL, stdout=words, stderr=words
            )
        try:
            _await(process, port, log)
            yield Pooler(direct, port, log)
        finally:
            process.kill()
            process.wait()


def _server(direct: str) -> str:
    parts = urlsplit(direct)
    words = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 5432,
        "user": unquote(parts.username or "postgres"),
        "password": unquote(parts.password or ""),
    }
    return " ".join(f"{key}='{value}'" for key, value in words.items() if value)


def _as_another_user() -> list[str]:
    """It refuses to be root. It ends with whoever has started it."""
    words = ["setpriv", "--pdeathsig", "KILL"]
    if os.getuid() == 0:
        user = next(entry for entry in map(pwd.getpwnam, USERS[1:]) if entry.pw_uid)
        words += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return words


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise RuntimeError(f"pgbouncer does not accept connections: {log.read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
