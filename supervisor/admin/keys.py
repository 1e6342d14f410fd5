"""Who somebody is: by a token, or by the session that a browser was given for one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Literal

from supervisor.access import token_in
from supervisor.config.settings import AdminSettings

Role = Literal["admin", "reader"]

SESSION_SECONDS = 12 * 3600
_ID = 32  # characters of a session's id


class Left:
    """Ids of sessions that were left before their end. Where there are too many, all that have begun are over."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._until: dict[str, int] = {}
        self._floor = 0

    def add(self, name: str, until: int, now: float) -> None:
        if len(self._until) >= self._most:
            self._until = {other: end for other, end in self._until.items() if end > now}
        if len(self._until) >= self._most:
            self._floor = int(now) + SESSION_SECONDS
            self._until.clear()
        self._until[name] = until

    def has(self, name: str, until: int) -> bool:
        return name in self._until or until <= self._floor


@dataclass(frozen=True, slots=True)
class Keys:
    """The tokens of each role; None: there is no such role, and without `admin` nobody is asked for anything.

    A session says its role, its end and its id, signed with that role's token and a secret of this process. So none
    has to be kept but those that somebody has left, and sessions end with their token, and with this process: or
    what was left would count again after its restart.
    """

    admin: str | None = field(repr=False)
    reader: str | None = field(repr=False)
    cookie: str
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False)
    _left: Left = field(default_factory=Left, repr=False, compare=False)

    @property
    def open(self) -> bool:
        """Whether everybody who gets here may do everything: on a Unix socket, whose file says who does."""
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
        """Whose session it is, unless it is over, forged, left, or of a token that is no longer ours."""
        claim, _, signed = session.rpartition(".")
        who, _, until = claim.partition(".")
        name, signature = signed[:_ID], signed[_ID:]
        role: Role | None = "admin" if who == "admin" else "reader" if who == "reader" else None
        if role is None or self._token(role) is None:
            return None
        if not hmac.compare_digest(self._signature(role, claim + name).encode(), signature.encode("utf-8", "replace")):
            return None
        return role if now < int(until) and not self._left.has(name, int(until)) else None

    def leave(self, session: str, now: float) -> None:
        """The session is over, whoever has a copy of its cookie."""
        if self.role_of_session(session, now) is not None:
            claim, _, signed = session.rpartition(".")
            self._left.add(signed[:_ID], int(claim.partition(".")[2]), now)

    def _token(self, role: Role) -> str | None:
        return self.admin if role == "admin" else self.reader

    def _signature(self, role: Role, claim: str) -> str:
        token = self._token(role) or ""
        return hmac.new(self._secret + token.encode(), f"session {claim}".encode(), hashlib.sha256).hexdigest()


def keys_of(settings: AdminSettings) -> Keys:
    """Raises ValueError or OSError where a token cannot be read."""
    port = "unix" if settings.address is None else settings.address[1]  # a host's ports share their cookies
    return Keys(
        admin=None if settings.token_file is None else token_in(settings.token_file),
        reader=None if settings.read_token_file is None else token_in(settings.read_token_file),
        cookie=f"supervisor_{port}",
    )
