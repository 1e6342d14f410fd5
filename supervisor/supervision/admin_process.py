"""The supervisor's side of its admin process, for which it holds the listening socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import AdminSettings, Settings
from supervisor.domain.text import shortened
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.system import settled_notice
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import ADMIN_SLOT, Scoreboard
from supervisor.system.signals import Reactor
from supervisor.system.sockets import Listening
from supervisor.telemetry import events

Serve = Callable[[Settings, Channel, socket.socket, Mapping[str, int]], int]
"""Runs in the child with its end of the channel, the listening socket, and the eventfds on which the idle workers of
pools sleep; returns the exit code.
"""

_LONGEST = 500  # characters of an error
RETRY = 10.0  # seconds between two attempts to bind an address that is in use
_STARTING = 60.0  # seconds for its imports
GRACE = 3.0  # seconds to finish its answers; it takes 2 at most
_HOPELESS = 3  # early deaths in a row from which on nothing listens until its next start: nobody would answer
_FINISH = 2.0  # seconds more for the results of requests, before a successor serves new ones


class AdminProcess:
    """Keeps an admin process running as `[admin]` configures it. Times are monotonic seconds.

    A failure here does not delay any job: it is logged, shown by `status`, and retried. `wakes` returns the eventfds on
    which the idle workers of each pool sleep.
    """

    def __init__(
        self, serve: Serve, board: Scoreboard, reactor: Reactor, wakes: Callable[[], Mapping[str, int]]
    ) -> None:
        self.process = SupervisedProcess("admin", board, ADMIN_SLOT, reactor, starting=_STARTING)
        self._serve = serve
        self._wakes = wakes
        self._settings: Settings | None = None
        self._given: tuple[object, ...] = ()  # to the process that runs, or has run last
        self._listening: Listening | None = None
        self._next_try = 0.0
        self._problem = ""  # of the address
        self._failing = self._error = ""  # why it is not ready; the error that has ended it, if it is known

    def open(self, settings: Settings | None) -> None:
        """Use these settings from now on; None ends it. A process for which anything is new finishes first; meanwhile
        connections wait. Any other one is kept.
        """
        before, self._settings = self._admin, settings
        if before is None or self._admin is None or before.listen != self._admin.listen:
            self._close_socket()
        if self.process.pid and (self._failing or self._given != self._gives()):
            self.process.dismiss(GRACE, finish=_FINISH if settings else 0.0)
        self._next_try, self._problem = 0.0, ""

    def attend(self, now: float) -> None:
        """Read the process's messages, and start or replace it if there should be one."""
        for message in self.process.hear():
            self._failing = self._error = message.get("problem", "")
        before = self.process.early_deaths
        if self.process.check(now) and (deaths := self.process.early_deaths) > max(1, before):
            self._failing = f"it has died {deaths} times in a row: {self._error or 'see the log'}"
            self._error = ""
            if deaths >= _HOPELESS:
                self._close_socket()
        settings, admin = self._settings, self._admin
        if settings is None or admin is None or now < self._next_try or not self.process.due(now):
            return
        try:
            listening = self._listening = self._listening or self._listen(admin)
        except OSError as error:  # jobs run anyway
            problem, self._next_try = f"{admin.listen}: {error.strerror or error}", now + RETRY
            log = events(process="supervisor")
            tell = log.error if problem != self._problem else log.debug
            tell("admin_unavailable", problem=problem, next_try_seconds=RETRY)
            self._problem = problem
            return
        wakes = dict(self._wakes())
        self._given = self._gives()  # before it reads the tokens, or a change might be missed
        keep = [listening.socket.fileno(), *settled_notice.kept_to_listen(), *wakes.values()]
        self.process.start(lambda channel: self._run(settings, channel, listening.socket, wakes), now, keep=keep)

    def _run(self, settings: Settings, channel: Channel, listening: socket.socket, wakes: Mapping[str, int]) -> int:
        """In the child."""
        try:
            return self._serve(settings, channel, listening, wakes)
        except Exception as error:
            channel.send({"problem": shortened(f"{type(error).__name__}: {error}", _LONGEST)})
            raise

    def _listen(self, admin: AdminSettings) -> Listening:
        """Raises OSError."""
        listening = Listening(admin.address, admin.unix_path)
        self._problem = ""
        if self.process.early_deaths < _HOPELESS:
            file = None if admin.token_file is None else str(admin.token_file)
            events(process="supervisor").info("admin_listening", url=listening.url, token_file=file)
        return listening

    def _gives(self) -> tuple[object, ...]:
        """All that a process uses and that a reload may change. It imports nothing of the handlers."""
        files = () if self._admin is None else (self._admin.token_file, self._admin.read_token_file)
        return self._settings, dict(self._wakes()), [_version(path) for path in files if path is not None]

    @property
    def due_at(self) -> float | None:
        """When `attend` must be called even without an event."""
        at = self.process.restart_at
        return None if self._admin is None or at is None else max(at, self._next_try)

    def supervisor_status(self) -> dict[str, Any] | None:
        """For `status`: its pid, its address and its problem; None if there should be none."""
        if self._admin is None:
            return None
        return {
            "pid": self.process.pid,
            "listen": self._admin.listen if self._listening is None else self._listening.url,
            "problem": self._problem or self._failing or None,
            "token_file": None if self._admin.token_file is None else str(self._admin.token_file),
        }

    @property
    def _admin(self) -> AdminSettings | None:
        return None if self._settings is None else self._settings.admin

    def _close_socket(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None


def _version(path: Path) -> tuple[int, int]:
    """What changes whenever the file does."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns
