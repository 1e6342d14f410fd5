"""Who somebody is: by a token, or by the session that a browser was given for one."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Literal

from supervisor.access import token_in
from supervisor.config.settings import AdminSettings

Role = Literal["admin", "reader"]

SESSION_SECONDS = 12 * 3600


@dataclass(frozen=True, slots=True)
class Keys:
    """The tokens of each role; None: there is no such role, and without `admin` nobody is asked for anything.

    A session says its role and its end, signed with that role's token. So none has to be kept: sessions outlive
    this process, and end with the token that they were given for.
    """

    admin: str | None = field(repr=False)
    reader: str | None = field(repr=False)
    cookie: str

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
        claim = f"{role}.{int(now) + SESSION_SECONDS}"
        return f"{claim}.{self._signature(role, claim)}"

    def role_of_session(self, session: str, now: float) -> Role | None:
        """Whose session it is, unless it is over, forged, or of a token that is no longer ours."""
        claim, _, signature = session.rpartition(".")
        name, _, until = claim.partition(".")
        role: Role | None = "admin" if name == "admin" else "reader" if name == "reader" else None
        if role is None or self._token(role) is None:
            return None
        if not hmac.compare_digest(self._signature(role, claim).encode(), signature.encode("utf-8", "replace")):
            return None
        return role if now < int(until) else None

    def _token(self, role: Role) -> str | None:
        return self.admin if role == "admin" else self.reader

    def _signature(self, role: Role, claim: str) -> str:
        token = self._token(role) or ""
        return hmac.new(token.encode(), f"session {claim}".encode(), hashlib.sha256).hexdigest()


def keys_of(settings: AdminSettings) -> Keys:
    """Raises ValueError or OSError where a token cannot be read."""
    port = "unix" if settings.address is None else settings.address[1]  # a host's ports share their cookies
    return Keys(
        admin=None if settings.token_file is None else token_in(settings.token_file),
        reader=None if settings.read_token_file is None else token_in(settings.read_token_file),
        cookie=f"supervisor_{port}",
    )
