"""The supervisor's side of its admin process, for which it holds the listening socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import AdminSettings, Settings
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

RETRY = 10.0  # seconds between two attempts to bind an address that is in use
_STARTING = 60.0  # seconds for its imports
GRACE = 3.0  # seconds to finish its answers; it takes 2 at most
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
        self._problem = ""

    def open(self, settings: Settings) -> None:
        """Use these settings from now on. A process for which anything is new finishes first; meanwhile connections
        wait. Any other one is kept.
        """
        before, self._settings = self._admin, settings
        if before is None or self._admin is None or before.listen != self._admin.listen:
            self._close_socket()
        if self.process.pid and (self._problem or self._given != self._gives(settings)):
            self.process.dismiss(GRACE, finish=_FINISH)
        self._next_try = 0.0
        self._problem = ""

    def attend(self, now: float) -> None:
        """Read the process's messages, and start or replace it if there should be one."""
        for message in self.process.hear():
            self._problem = message.get("problem", "")
        if self.process.check(now) and self.process.early_deaths > 1 and not self._problem:
            self._problem = f"it has died {self.process.early_deaths} times in a row; see the log"
        settings = self._settings
        if settings is None or settings.admin is None or not self.process.due(now):
            return
        listening = self._listen(settings.admin, now)
        if listening is not None:
            run = self._serve
            self._given = self._gives(settings)  # before it reads the tokens, or a change might be missed
            wakes = dict(self._wakes())
            keep = [listening.socket.fileno(), *settled_notice.kept_to_listen(), *wakes.values()]
            self.process.start(lambda channel: run(settings, channel, listening.socket, wakes), now, keep=keep)

    def _gives(self, settings: Settings) -> tuple[object, ...]:
        """All that a process uses and that a reload may change. It imports nothing of the handlers."""
        admin = settings.admin
        files = [] if admin is None else [admin.token_file, admin.read_token_file]
        return settings, dict(self._wakes()), [_version(path) for path in files if path is not None]

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
            "problem": self._problem or None,
        }

    def close(self) -> None:
        """Let it finish, and do not start another one."""
        self._settings = None
        self._close_socket()
        self.process.dismiss(GRACE)

    @property
    def _admin(self) -> AdminSettings | None:
        return None if self._settings is None else self._settings.admin

    def _listen(self, admin: AdminSettings, now: float) -> Listening | None:
        """The socket, or None while its address is unavailable; jobs run anyway."""
        if self._listening is None and now >= self._next_try:
            try:
                self._listening = Listening(admin.address, admin.unix_path)
            except OSError as error:
                self._next_try = now + RETRY
                self._complain(f"{admin.listen}: {error.strerror or error}")
            else:
                self._problem = ""
                events(process="supervisor").info(
                    "admin_listening",
                    url=self._listening.url,
                    token_file=None if admin.token_file is None else str(admin.token_file),
                )
        return self._listening

    def _complain(self, problem: str) -> None:
        log = events(process="supervisor")
        tell = log.error if problem != self._problem else log.debug
        tell("admin_unavailable", problem=problem, next_try_seconds=RETRY)
        self._problem = problem

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
