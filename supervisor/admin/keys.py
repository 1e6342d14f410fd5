"""Authentication: by a token, or by the session that a browser received for one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

from supervisor.admin.left import SESSION_SECONDS, Left
from supervisor.config.settings import AdminSettings
from supervisor.ops.admin_files import token_in

Role = Literal["admin", "reader"]

_ID = 32  # characters of a session's id


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
    left: Left = field(default_factory=Left, repr=False, compare=False)
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
        claim, name = f"{role}.{int(now) + SESSION_SECONDS}", secrets.token_hex(_ID // 2)
        return f"{claim}.{name}{self._signature(role, claim + name)}"

    def role_of_session(self, session: str, now: float) -> Role | None:
        """The role of a session; None if it has ended, is forged, was logged out, or belongs to an old token."""
        claim, _, signed = session.rpartition(".")
        who, _, until = claim.partition(".")
        name, signature = signed[:_ID], signed[_ID:]
        role: Role | None = "admin" if who == "admin" else "reader" if who == "reader" else None
        if role is None or self._token(role) is None:
            return None
        if not hmac.compare_digest(self._signature(role, claim + name).encode(), signature.encode("utf-8", "replace")):
            return None
        return role if now < int(until) and not self.left.has(name, int(until)) else None

    def leave(self, session: str, now: float) -> None:
        """End the session, also for copies of its cookie."""
        if self.role_of_session(session, now) is not None:
            claim, _, signed = session.rpartition(".")
            self.left.add(signed[:_ID], int(claim.partition(".")[2]), now)

    def _token(self, role: Role) -> str | None:
        return self.admin if role == "admin" else self.reader

    def _signature(self, role: Role, claim: str) -> str:
        token = self._token(role) or ""
        return hmac.new(self.secret + token.encode(), f"session {claim}".encode(), hashlib.sha256).hexdigest()


def keys_of(settings: AdminSettings) -> Keys:
    """Raises ValueError or OSError if a token cannot be read."""
    port = "unix" if settings.address is None else settings.address[1]  # all ports of a host share cookies
    admin = None if settings.token_file is None else token_in(settings.token_file)
    left = Left() if settings.token_file is None else Left.in_file(settings.token_file, time.time())
    return Keys(
        admin=admin,
        reader=None if settings.read_token_file is None else token_in(settings.read_token_file),
        cookie=f"supervisor_{port}",
        left=left,
        secret=b"" if left.is_kept else secrets.token_bytes(32),
    )
