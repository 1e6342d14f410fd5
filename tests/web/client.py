"""A client of the admin process of a site: where it is, who may come in, what it answers."""

from __future__ import annotations

import http.client
import socket
import subprocess
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from supervisor.config.settings import AdminSettings
from supervisor.engine import open_engine
from tests.site_under_test import Site, wait_for

# Of an application that is asked in this process, without its socket.
SETTINGS = AdminSettings(
    listen="unix:/nowhere",
    token_file=None,
    read_token_file=None,
    hosts=(),
    show_payloads=False,
    allow_remote=False,
)
ADMIN = '[admin]\nlisten = "127.0.0.1:0"\n'
WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n'


@dataclass(frozen=True)
class Admin:
    """One admin process as its supervisor shows it."""

    pid: int
    listen: str
    token: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.listen)
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str, *, timeout: float = 20.0, **headers: str) -> int:
        """The status of the answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            connection.request("GET", path, headers=self.bearer | headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)


def admin_of(site: Site, supervisor: subprocess.Popen[bytes], *, other_than: int = 0) -> Admin:
    """The admin process of a supervisor once it answers; another than one of before, if that is told."""

    def there() -> dict[str, Any] | None:
        news = site.supervisor_status(supervisor).get("admin")
        serving = news and news["pid"] and news["pid"] != other_than and not news["problem"]
        return news if serving else None

    news = wait_for(there, "the admin process")
    token = open_engine(site.url).database.folder / "admin-token"
    admin = Admin(news["pid"], news["listen"], token.read_text().strip() if token.exists() else "")
    if not admin.listen.startswith("unix:"):
        assert admin.get("/login") in (200, 303)
    return admin
