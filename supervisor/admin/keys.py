"""Authentication: by a token, or by the session that a browser received for one."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from pathlib import Path
from typing import Literal, get_args

from supervisor.config.settings import AdminSettings
from supervisor.ops.admin_files import token_in
from supervisor.system.files import replace
from supervisor.telemetry import events

Role = Literal["admin", "reader"]

SESSION_SECONDS = 12 * 3600


class Keys:
    """The tokens of each role. None: the role is not set up; without `admin`, no token is required.

    A session contains its role and when it began, signed with that role's token. So sessions outlive this process, and
    end when their token changes. Logging out ends all sessions of the role that have begun: only that time is stored,
    in the file `logged_out`. If it cannot be, the signature also uses a secret of this process, and sessions end with
    it.
    """

    def __init__(self, admin: str | None, reader: str | None, cookie: str, logged_out: Path | None = None) -> None:
        self.cookie = cookie
        self._tokens = {"admin": admin, "reader": reader}
        self._logged_out = logged_out
        self._secret = b""
        self._ended: dict[str, int] = {}  # microseconds of Unix time, by role
        if logged_out is not None:
            try:
                self._ended = {role: int(at) for role, at in json.loads(logged_out.read_bytes()).items()}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, AttributeError, OverflowError):
                self._ended = dict.fromkeys(self._tokens, _microseconds(time.time()))
            if not self._store():
                self._secret = secrets.token_bytes(32)

    @property
    def open(self) -> bool:
        """Whether no token is required: on a Unix socket, the file's permissions control access."""
        return self._tokens["admin"] is None

    def role_of_token(self, token: str) -> Role | None:
        """Compared in constant time."""
        found: Role | None = None
        for role in get_args(Role):
            expected = self._tokens[role]
            if expected is not None and hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")):
                found = found or role
        return found

    def session(self, role: Role, now: float) -> str:
        """A new session of that role; `now` is Unix seconds."""
        claim = f"{role}.{max(_microseconds(now), self._ended.get(role, 0) + 1)}"
        return f"{claim}.{self._signature(role, claim)}"

    def role_of_session(self, session: str, now: float) -> Role | None:
        """The role of a session; None if it has ended, is forged, was logged out, or belongs to an old token."""
        claim, _, signature = session.rpartition(".")
        for role in get_args(Role):
            expected = self._signature(role, claim)
            is_its = self._tokens[role] is not None and claim.startswith(f"{role}.")
            if is_its and hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
                began = int(claim.partition(".")[2])
                over = _microseconds(now) >= began + SESSION_SECONDS * 1_000_000
                return None if over or began <= self._ended.get(role, 0) else role
        return None

    def log_out(self, session: str, now: float) -> None:
        """End the sessions of its role, in all browsers, also for copies of their cookies."""
        if (role := self.role_of_session(session, now)) is not None:
            self._ended[role] = max(_microseconds(now), int(session.split(".")[1]))
            self._store()

    def _store(self) -> bool:
        if self._logged_out is not None:
            try:
                replace(self._logged_out, json.dumps(self._ended))
            except OSError as error:
                events(process="admin").warning("sessions_not_kept", file=str(self._logged_out), problem=error.strerror)
                return False
        return True

    def _signature(self, role: Role, claim: str) -> str:
        key = self._secret + (self._tokens[role] or "").encode()
        return hmac.new(key, f"session {claim}".encode(), hashlib.sha256).hexdigest()


def _microseconds(now: float) -> int:
    return int(now * 1_000_000)


def keys_of(settings: AdminSettings) -> Keys:
    """Raises ValueError or OSError if a token cannot be read."""
    port = "unix" if settings.address is None else settings.address[1]  # all ports of a host share cookies
    admin, reader = (
        None if path is None else token_in(path) for path in (settings.token_file, settings.read_token_file)
    )
    file = settings.token_file
    return Keys(admin, reader, f"supervisor_{port}", None if file is None else file.with_name(f"{file.name}.left"))
