"""Where the database is: its URL, how it is shown, and the folder that its supervisors share on this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from supervisor.domain.errors import StoreError
from supervisor.domain.url import without_password
from supervisor.system.trust import file_problem, folder_problem

# What libpq does otherwise is to wait for hours for a server that is gone. Seconds, and milliseconds for the last.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "job-supervisor",
}


class Address:
    """Implements `store.ownership.LockFolder`. `shown` is the URL without its password."""

    def __init__(self, url: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.url = url
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"the database's URL is not understood: {reason}") from None
        self.options: dict[str, Any] = {**_DEFAULTS, **(defaults or {}), **given}
        self.shown = without_password(url)
        identity = "\0".join(str(given.get(key, "")) for key in ("host", "hostaddr", "port", "dbname", "options"))
        self.folder = _state() / f"postgresql-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def owner_lock(self, supervisor: str) -> Path:
        return self.folder / f"owner-{supervisor}.lock"

    def open_shared(self, path: Path) -> int:
        """Open (and make) a lock file in the folder. Returns the descriptor."""
        self.make_folder()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        problem = file_problem(path, descriptor, set())
        if problem:
            os.close(descriptor)
            raise StoreError(problem)
        return descriptor

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        problem = folder_problem(self.folder, set())
        if problem:
            raise StoreError(problem)


def _state() -> Path:
    """Where this user's programs keep what is no configuration: it outlives a reboot, unlike the runtime folder."""
    found = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's
    if found:
        return Path(found)
    home = os.environ.get("XDG_STATE_HOME", "")
    return Path(home if home.startswith("/") else Path("~/.local/state").expanduser()) / "job-supervisor"
