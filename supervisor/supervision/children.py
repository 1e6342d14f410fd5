"""The supervisor's side of its maintainer and of its admin process.

The maintainer gets orders, and reports of deaths, which are kept until it has settled them. For the admin process the
supervisor holds the listening socket."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.settings import AdminSettings, Settings
from supervisor.domain.errors import StoreError
from supervisor.maintenance.deaths import DeathReport
from supervisor.maintenance.duties import Orders
from supervisor.maintenance.maintainer import Maintainer
from supervisor.maintenance.reports import trouble_of
from supervisor.store.base import Engine, SupervisorRecord
from supervisor.supervision.pools import Pools
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.system import settled_notice
from supervisor.system.channel import Channel, Message
from supervisor.system.listening import Listening
from supervisor.system.scoreboard import MAX_SLOTS, Scoreboard
from supervisor.system.slot import Slot
from supervisor.telemetry import events


class Slots:
    """A slot is reused only after the end of its previous worker has been settled."""

    def __init__(self, board: Scoreboard) -> None:
        self._board = board
        self._free = list(range(MAX_SLOTS - 1, 0, -1))

    @property
    def full(self) -> bool:
        return not self._free

    def take(self, incarnation: str, name: str) -> tuple[int, Slot]:
        """Assign the lowest free slot to this worker."""
        number = self._free.pop()
        slot = self._board.slot(number)
        slot.assign(incarnation, name)
        self._board.use_up_to(number)
        return number, slot

    def give_back(self, number: int) -> None:
        self._board.slot(number).clear()
        self._free.append(number)


def orders_of(settings: Settings, record: SupervisorRecord, pools: Pools, *, burst: bool) -> Orders:
    """The orders for the next maintainer."""
    return Orders(
        record=record,
        pool_infos=pools.pool_infos(),
        leaving=pools.leaving(),
        keep_done=settings.retention.done,
        keep_failed=settings.retention.failed,
        schedules=settings.schedules,
        alerts=settings.alerts,
        burst=burst,
        vacuum=settings.vacuum,
        since=record.started_at,
    )


class MaintainerClient:
    """Reports of deaths are kept until this or a later maintainer has acknowledged them; then their slots are free."""

    def __init__(self, engine: Engine, board: Scoreboard, slots: Slots, process: SupervisedProcess) -> None:
        self._engine = engine
        self._board = board
        self._slots = slots
        self._process = process
        self._numbers = itertools.count(1)
        self.unacknowledged: dict[int, DeathReport] = {}
        self._unhandled: set[str] = set()  # types without a pool
        self._log = events(process="supervisor")
        self.recovered = False

    def start(self, orders: Orders, now: float) -> None:
        """Fork a maintainer and send it the unacknowledged reports. If the fork fails, try again later."""

        def become(channel: Channel) -> int:
            try:
                maintainer = Maintainer(orders, self._engine, channel, self._board)
            except StoreError as error:
                channel.send(trouble_of(error))
                return 1
            return maintainer.run()

        if self._process.start(become, now, keep=[info.wake for info in orders.pool_infos.values()]):
            for number, report in self.unacknowledged.items():
                self._process.send({"death": report.as_message(), "id": number})

    def report(self, death: DeathReport) -> None:
        """Report a death to be settled."""
        number = next(self._numbers)
        self.unacknowledged[number] = death
        self._process.send({"death": death.as_message(), "id": number})

    def hear(self, obey: Callable[[Message], None]) -> None:
        """Process the maintainer's messages. Each is passed to `obey`."""
        for message in self._process.hear():
            if "ack" in message and (settled := self.unacknowledged.pop(message["ack"], None)) is not None:
                self._slots.give_back(settled.slot)
            if "recovered" in message:
                self.recovered, found = True, message["recovered"]
                log = self._log.info if found["supervisors"] else self._log.debug
                log("recovered", **found)
            if "unhandled" in message:
                self._warn_of_unhandled(message["unhandled"])
            obey(message)

    def _warn_of_unhandled(self, types: list[str]) -> None:
        """Warn once per type, although a new maintainer reports all of them again."""
        news = sorted(set(types) - self._unhandled)
        self._unhandled = set(types)
        if news:
            self._log.warning("types_unhandled", types=news, hint="no pool of this supervisor takes these types")

    def replace(self, orders: Orders, now: float) -> None:
        """Start another one with orders from a new configuration."""
        self._unhandled = set()
        self._process.retire()
        self.start(orders, now)


Serve = Callable[[Settings, Channel, socket.socket, Mapping[str, int]], int]
"""Runs in the child with its end of the channel, the listening socket, and the eventfds on which the idle workers of
pools sleep; returns the exit code.
"""

_File = tuple[int, ...]

RETRY = 10.0  # seconds between two attempts to bind an address that is in use
STARTING = 60.0  # seconds for its imports
GRACE = 3.0  # seconds to finish its answers; it takes 2 at most
_FINISH = 2.0  # seconds more for the results of requests, before a successor serves new ones


class _Given(NamedTuple):
    """All that a process uses and that a reload may change. It imports nothing of the handlers."""

    settings: Settings
    wakes: dict[str, int]
    tokens: tuple[_File, ...]


class AdminProcess:
    """Keeps an admin process running as `[admin]` configures it. Times are monotonic seconds.

    A failure here does not delay any job: it is logged, shown by `status`, and retried. `wakes` returns the eventfds on
    which the idle workers of each pool sleep.
    """

    def __init__(self, serve: Serve, process: SupervisedProcess, wakes: Callable[[], Mapping[str, int]]) -> None:
        self._serve = serve
        self._process = process
        self._wakes = wakes
        self._log = events(process="supervisor")
        self._settings: Settings | None = None
        self._given: _Given | None = None  # to the process that runs, or has run last
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
        if self._process.is_running() and (self._problem or self._given != self._gives(settings)):
            self._process.dismiss(GRACE, finish=_FINISH)
        self._next_try = 0.0
        self._problem = ""

    def attend(self, now: float) -> None:
        """Read the process's messages, and start or replace it if there should be one."""
        for message in self._process.hear():
            self._problem = message.get("problem", "")
        if self._process.check(now) and self._process.early_deaths > 1 and not self._problem:
            self._problem = f"it has died {self._process.early_deaths} times in a row; see the log"
        settings = self._settings
        if settings is None or settings.admin is None or not self._process.due(now):
            return
        listening = self._listen(settings.admin, now)
        if listening is not None:
            run = self._serve
            given = self._given = self._gives(settings)  # before it reads the tokens, or a change might be missed
            keep = [listening.socket.fileno(), *settled_notice.kept_to_listen(), *given.wakes.values()]
            self._process.start(lambda channel: run(settings, channel, listening.socket, given.wakes), now, keep=keep)

    def _gives(self, settings: Settings) -> _Given:
        admin = settings.admin
        files = () if admin is None else (admin.token_file, admin.read_token_file)
        return _Given(settings, dict(self._wakes()), tuple(_file(path) for path in files if path is not None))

    @property
    def due_at(self) -> float | None:
        """When `attend` must be called even without an event."""
        at = self._process.restart_at
        return None if self._admin is None or at is None else max(at, self._next_try)

    def supervisor_status(self) -> dict[str, Any] | None:
        """For `status`: its pid, its address and its problem; None if there should be none."""
        if self._admin is None:
            return None
        return {
            "pid": self._process.pid if self._process.is_running() else None,
            "listen": self._admin.listen if self._listening is None else self._listening.url,
            "problem": self._problem or None,
        }

    def close(self) -> None:
        """Let it finish, and do not start another one."""
        self._settings = None
        self._close_socket()
        self._process.dismiss(GRACE)

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
                self._log.info("admin_listening", url=self._listening.url, token_file=_text(admin.token_file))
        return self._listening

    def _complain(self, problem: str) -> None:
        log = self._log.error if problem != self._problem else self._log.debug
        log("admin_unavailable", problem=problem, next_try_seconds=RETRY)
        self._problem = problem

    def _close_socket(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None


def _file(path: Path) -> _File:
    """What changes whenever the file does."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return ()


def _text(path: object) -> str | None:
    return None if path is None else str(path)
