"""Authentication: by a token, or by the session that a browser received for one."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from supervisor.config.settings import AdminSettings
from supervisor.ops.admin_files import token_in
from supervisor.system.files import replace
from supervisor.telemetry import events

Role = Literal["admin", "reader"]

SESSION_SECONDS = 12 * 3600
_SUFFIX = ".left"


class LoggedOut:
    """The ids of sessions that were logged out before their end. If there are too many, all existing sessions end.

    They are stored beside a token's file, so that they stay invalid after a restart; `is_kept` says whether they can
    be. An invalid file ends all existing sessions.
    """

    def __init__(self, token_file: Path | None = None, now: float = 0.0, most: int = 10_000) -> None:
        self._file = None if token_file is None else token_file.with_name(token_file.name + _SUFFIX)
        self._most = most
        self._until: dict[str, int] = {}
        self._floor = 0
        if self._file is not None:
            try:
                stored = json.loads(self._file.read_bytes())
                self._floor = int(stored["floor"])
                self._until = {name: int(until) for name, until in stored["left"].items()}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, LookupError, AttributeError):
                self._floor = int(now) + SESSION_SECONDS
            self._keep(now)

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    def add(self, name: str, until: int, now: float) -> None:
        self._until[name] = until
        self._keep(now)

    def has(self, name: str, until: int) -> bool:
        return name in self._until or until <= self._floor

    def _keep(self, now: float) -> None:
        """Store the ids. If that fails, they are kept only in this process, and the log says so."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        if len(self._until) > self._most:
            self._floor = int(now) + SESSION_SECONDS
            self._until.clear()
        if self._file is not None:
            try:
                replace(self._file, json.dumps({"floor": self._floor, "left": self._until}))
            except OSError as error:
                events(process="admin").warning("sessions_not_kept", file=str(self._file), problem=error.strerror)
                self._file = None


@dataclass(frozen=True, slots=True)
class Keys:
    """The tokens of each role. None: the role is not set up; without `admin`, no token is required.

    A session contains its role, its end and its id, signed with that role's token. So only the sessions that were
    logged out have to be stored: sessions outlive this process, and end when their token changes. If logged-out
    sessions cannot be stored, the signature also uses a `secret` of this process, and sessions end with it.
    """

    admin: str | None = field(repr=False)
    reader: str | None = field(repr=False)
    cookie: str
    logged_out: LoggedOut = field(default_factory=LoggedOut, repr=False, compare=False)
    secret: bytes = field(default=b"", repr=False, compare=False)

    @property
    def open(self) -> bool:
        """Whether no token is required: on a Unix socket, the file's permissions control access."""
        return self.admin is None

    def role_of_token(self, token: str) -> Role | None:
        """Compared in constant time."""
        found: Role | None = None
        for role in ("reader", "admin"):
            expected = self._token(role)
            if expected is not None and hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")):
                found = role
        return found

    def session(self, role: Role, now: float) -> str:
        """A new session of that role; `now` is Unix seconds."""
        claim = f"{role}.{int(now) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{claim}.{self._signature(role, claim)}"

    def role_of_session(self, session: str, now: float) -> Role | None:
        """The role of a session; None if it has ended, is forged, was logged out, or belongs to an old token."""
        found = self._read(session)
        if found is None or now >= found[1] or self.logged_out.has(found[2], found[1]):
            return None
        return found[0]

    def log_out(self, session: str, now: float) -> None:
        """End the session, also for copies of its cookie."""
        found = self._read(session)
        if found is not None and now < found[1]:
            self.logged_out.add(found[2], found[1], now)

    def _read(self, session: str) -> tuple[Role, int, str] | None:
        """The role, the end and the id of a session; None if its signature is not ours."""
        claim, _, signature = session.rpartition(".")
        for role in get_args(Role):
            expected = self._signature(role, claim)
            is_its = self._token(role) is not None and claim.startswith(f"{role}.")
            if is_its and hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
                _, until, name = claim.split(".")
                return role, int(until), name
        return None

    def _token(self, role: Role) -> str | None:
        return self.admin if role == "admin" else self.reader

    def _signature(self, role: Role, claim: str) -> str:
        token = self._token(role) or ""
        return hmac.new(self.secret + token.encode(), f"session {claim}".encode(), hashlib.sha256).hexdigest()


def keys_of(settings: AdminSettings) -> Keys:
    """Raises ValueError or OSError if a token cannot be read."""
    port = "unix" if settings.address is None else settings.address[1]  # all ports of a host share cookies
    admin = None if settings.token_file is None else token_in(settings.token_file)
    logged_out = LoggedOut(settings.token_file, time.time())
    return Keys(
        admin=admin,
        reader=None if settings.read_token_file is None else token_in(settings.read_token_file),
        cookie=f"supervisor_{port}",
        logged_out=logged_out,
        secret=b"" if logged_out.is_kept else secrets.token_bytes(32),
    )
