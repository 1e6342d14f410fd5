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
from supervisor.domain.text import without_password
from supervisor.store.ownership import LockFolder

# What libpq does otherwise is to wait for hours for a server that is gone. Seconds, and milliseconds for the last.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "job-supervisor",
}


class Address(LockFolder):
    """`shown` is the URL without its password."""

    def __init__(self, url: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.url = url
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"the database's URL is not understood: {reason}") from None
        self.options: dict[str, Any] = {**_DEFAULTS, **(defaults or {}), **given}
        self.shown = without_password(url)
        names = {"host": "HOST", "hostaddr": "HOSTADDR", "port": "PORT", "dbname": "DATABASE", "options": "OPTIONS"}
        parts = [str(given.get(key) or os.environ.get(f"PG{name}", "")) for key, name in names.items()]
        identity = "\0".join(parts)  # with what the URL leaves to the environment
        super().__init__(_state() / f"postgresql-{hashlib.sha256(identity.encode()).hexdigest()[:16]}", parents=True)


def _state() -> Path:
    """Where this user's programs keep what is no configuration: it outlives a reboot, unlike the runtime folder."""
    found = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's
    if found:
        return Path(found)
    home = os.environ.get("XDG_STATE_HOME", "")
    return Path(home if home.startswith("/") else Path("~/.local/state").expanduser()) / "job-supervisor"
