"""At each call of the store in turn something fails once; afterwards all goes on, and everything is done in the end.

The store and the duties are the real ones; only a call is refused now and then, and the clock is ours.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import supervisor.maintenance.maintainer  # noqa: F401 - all duties that there are
from supervisor.config.reader import schedule_of
from supervisor.domain.alerts import Alert
from supervisor.domain.alerts import State as AlertState
from supervisor.domain.duty import Duty
from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from supervisor.domain.history import DAY, HOUR, MINUTE, Minute
from supervisor.domain.job import Status
from supervisor.domain.limits import Limits
from supervisor.domain.schedule import Schedule
from supervisor.domain.settlement import failed
from supervisor.engine import open_engine
from supervisor.maintenance import scheduler
from supervisor.maintenance.alerts import RaiseAlert
from supervisor.maintenance.deaths import DeathReport, Deaths
from supervisor.maintenance.gates import OpenGates
from supervisor.maintenance.history import HistoryRecorder
from supervisor.maintenance.locks import Reclaimer, Renewer
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.prune_and_redrive import Pruner, Redriver
from supervisor.maintenance.recovery import Recovery
from supervisor.maintenance.reports import (
    DepthGauge,
    Poller,
    cancel_requests,
    control_settings,
    unhandled_types,
)
from supervisor.maintenance.scheduler import Scheduler
from supervisor.maintenance.schedules import ClockWatch, FireSchedule, FireSchedulesMade
from supervisor.maintenance.waking import CommitWatch, Waker
from supervisor.store.base import JobSelector, Planned
from supervisor.system import counters
from supervisor.system.scoreboard import Scoreboard, counters_of
from supervisor.system.slot import State
from supervisor.telemetry import configure, events, unconfigure
from tests.store.kit import BROKEN, NOW, POLICY, Desk, supervisor_record, worker_record

ERRORS: dict[str, Callable[[], Exception]] = {
    "busy": lambda: StoreBusy("somebody else writes"),
    "full": lambda: StoreUnavailable("the disk is full"),
    "refused": lambda: StoreError("a trigger says no"),
    "bug": lambda: KeyError("a weird row"),
}
WANTED = JobSelector(("tag",))
LOCK = 60.0
PATIENCE = 400.0  # seconds of our own clock
FIRST = MINUTE * (NOW // MINUTE)


class Refusing:
    """A store, or one concern of it, whose n-th call, counted over all of a test, fails instead of being made."""

    def __init__(self, role: Any, calls: Calls) -> None:
        self._role, self._calls = role, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._role, name)
        if type(found).__module__.startswith("supervisor.store.") and not callable(found):
            return Refusing(found, self._calls)
        if not callable(found) or name in ("close", "fileno", "drain", "pause", "resume"):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._calls.pass_by(name)
            return found(*arguments, **options)

        return call


@dataclass
class Calls:
    fail_at: int
    error: Callable[[], Exception]
    names: list[str] = field(default_factory=list)

    def pass_by(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.fail_at:
            raise self.error()


@dataclass
class Clock:
    at: float = 1000.0

    def steady(self) -> float:
        return self.at

    def now(self) -> float:
        return FIRST + self.at - 1000.0


CLAIMED = ("live", "died", "old", "ghost")  # types of the jobs that are running, and owners without their "w-"


class World:
    """A database in which there is something to do for every duty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[dict[str, Any]] = []
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.posted = False
        self.clock = Clock()

    @classmethod
    def prepare(cls, folder: Path) -> None:
        desk = Desk.at(open_engine(f"sqlite:///{folder}/jobs.db"))
        for name in ("own", "dead"):
            desk.maintenance.registry.register(
                supervisor_record(name, desk.engine, "/nowhere", scoreboard=str(folder / name))
            )
        for name, owner in (("w-live", "own"), ("w-died", "own"), ("w-old", "dead")):
            desk.claims.register(worker_record(name, owner, slot=1))
        for name in CLAIMED:
            desk.put(name, at=FIRST - 9000)
            long_ago = 3600.0 if name == "ghost" else 0.0
            desk.claim([name], owner=f"w-{name}", now=FIRST - long_ago, lock_time=LOCK)
        desk.operations.actions.cancel(1, FIRST)
        for type_, status in (("tag", Status.FAILED), ("ancient", Status.DONE), ("lost", Status.FAILED)):
            desk.finish(desk.put(type_, at=FIRST - 9000), status, at=FIRST - 8000)
        desk.operations.controls.scale("tag", 3, FIRST)
        minutes = [Minute(HOUR * (FIRST // HOUR) - days * DAY + MINUTE, "tag", done=1) for days in (40, 3, 2)]
        assert desk.maintenance.history.record("own", "{}", "{} ", minutes)
        alert = Alert("given_up", 0.0, "alarm", "{}", 60.0)
        desk.maintenance.finished.alerts.begin(alert.id, AlertState(0).written())
        desk.put("nobodys")
        desk.put("retried")
        [claim] = desk.claim(["retried"], now=FIRST + HOUR)
        desk.settle(failed(claim, BROKEN, POLICY, chance=0.5), now=FIRST + HOUR)
        desk.put("tag", at=FIRST)
        desk.put("stale", at=FIRST, extra={"expires_at": FIRST})
        made = Planned("made", "[]", FIRST - 1, type="made", definition='{"type": "made", "every": "50s"}')
        assert desk.maintenance.schedules.define(made, None, FIRST)
        desk.maintenance.schedules.plan("watched", "[]", 4e9, type="good", expect_within=9e3, expected_from=FIRST - 8e3)
        job = desk.operations.schedules.run("watched", FIRST - 100)
        assert job is not None
        desk.finish(job, at=FIRST - 10)
        desk.close()

    def duties(self, calls: Calls) -> Iterator[Duty]:
        engine = open_engine(f"sqlite:///{self.folder}/jobs.db")
        self.roles = engine.maintenance(), engine.changes()
        self.look = engine.operations()
        store, feed = (Refusing(role, calls) for role in self.roles)
        send = self.messages.append
        board = Scoreboard.create(self.folder / "scoreboard-own")
        board.use_up_to(2)
        for number, (name, state) in enumerate([("w-live", State.BUSY), ("w-idle", State.IDLE)], 1):
            slot = board.slot(number)
            slot.assign(name, f"tag-{number}")
            slot.page.pid = os.getpid()
            slot.state(state)
            slot.page.claims = 1 if state is State.BUSY else 0
        counters.shared(counters_of(board.path), 1).ran("tag", 0.5, 0.25, failed=False)
        deaths = Deaths(store.locks, send=send)
        deaths.reports[7] = DeathReport("w-died", "tag-9", "crash", 2, 1).as_message()
        watch = CommitWatch(feed, self.clock.steady)
        schedule = Schedule("often", "planned", "{}", None, 50.0, "UTC", "once")
        made = FireSchedulesMade(store.schedules, schedule_of, expecting=True)
        yield Poller("controls", lambda: control_settings(store.controls, {"tag"}, "here", board.gate, made.heed), send)
        yield deaths
        yield from self.duties_of_the_engine(calls)
        yield watch
        yield OpenGates(store.gates, {"limited": Limits(max_running=1)}, ("limited",))
        pools = {"tag": PoolOrders(WANTED, self.wake, LOCK, 5.0, 60.0, 1)}
        yield Waker(store.backlog, board, pools, watch)
        yield DepthGauge(store.backlog, {"tag": WANTED}, send)
        yield Renewer(store.locks, board, pools)
        yield Poller("cancels", lambda: cancel_requests(store.controls, "own"), send)
        yield Poller("unhandled types", lambda: unhandled_types(store.backlog, ("tag",), store.registry), send)
        yield ClockWatch(store.backlog, store.gates)
        alert = Alert("given_up", 0.0, "alarm", "{}", 60.0)
        yield RaiseAlert(alert, store, {"tag": WANTED}, (), board, "host")
        yield FireSchedule(store.schedules, schedule)
        yield made
        yield Redriver(store.finished, pools.values())
        yield Recovery(store.registry, store.locks, "own")
        yield Reclaimer(store.locks, store.registry, LOCK, self.clock.steady)
        yield HistoryRecorder(store.history, store.backlog, "own", counters_of(board.path))
        yield Pruner(store.finished, 3600.0, None)

    def duties_of_the_engine(self, calls: Calls) -> Iterator[Duty]:
        """They know what they look after by themselves."""
        for duty in self.roles[0].duties(events()):
            for name, known in vars(duty).items():
                if type(known).__module__.startswith("supervisor.store."):
                    setattr(duty, name, Refusing(known, calls))
            yield duty

    def left_undone(self) -> list[str]:
        """What has not been done yet."""
        jobs = {job.type: job for job in self.look.jobs.latest(status=None, type=None, before=None, limit=500)}
        live = jobs["live"]
        self.posted = self.posted or posted(self.wake)
        done = {
            "deaths": jobs["died"].crashes == 1 and {"ack": 7, "jobs": 1} in self.messages,
            "recovery": jobs["old"].crashes == 1 and [one.id for one in self.look.registry.supervisors()] == ["own"],
            "reclaiming": jobs["ghost"].crashes == 1,
            "renewal": (live.lock_expires_at or 0.0) > FIRST + LOCK,
            "delays": jobs["retried"].scheduled_at < FIRST + HOUR,
            "retries": not self.look.jobs.latest(status=Status.FAILED, type="tag", before=None, limit=1),
            "pruning": "ancient" not in jobs,
            "gates": jobs["stale"].status is Status.CANCELLED,
            "limits": [view.type for view in self.look.gates.limits()] == ["limited"],
            "schedule": "planned" in jobs,
            "made": "made" in jobs,
            "success": FIRST - 10 in [row.expected_from for row in self.look.schedules.planned()],
            "alert": "alarm" in jobs,
            "history": bool(self.look.history.minutes(FIRST - HOUR)),
            "hours": [row.at % HOUR for row in self.look.history.minutes(-1e9, FIRST - DAY)] == [0.0, 0.0],
            "controls": {"controls": {"sizes": {"tag": 3}, "reloads": 0}, "drained": False} in self.messages,
            "cancels": {"cancels": [[live.id, 1, "w-live"]]} in self.messages,
            "unhandled": any("nobodys" in message.get("unhandled", ()) for message in self.messages),
            "depths": any(message["depths"]["tag"]["due"] == 2 for message in self.messages if "depths" in message),
            "waking": self.posted,
        }
        return [name for name, is_done in done.items() if not is_done]

    def run(self, calls: Calls) -> list[str]:
        """Until all is done, for PATIENCE at most. Returns what is left."""
        made = Scheduler([*self.duties(calls)], steady=self.clock.steady, wall=self.clock.now)
        until = self.clock.at + PATIENCE
        while self.clock.at < until:
            made.perform()
            self.clock.at = max(self.clock.at + 0.001, made.next_at())
            if not self.left_undone() and not made.failing:
                return []
        return [*self.left_undone(), *made.failing]

    def close(self) -> None:
        for role in (*self.roles, self.look):
            role.close()
        os.close(self.wake)


def posted(eventfd: int) -> bool:
    try:
        return os.eventfd_read(eventfd) > 0
    except BlockingIOError:
        return False


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    World.prepare(folder)
    return folder


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Items are tried again without a pause: their clock is not ours. Nobody reads what is logged."""
    monkeypatch.setattr(scheduler, "FIRST_PAUSE", 0.0)
    configure("json", "error", io.StringIO())
    yield
    unconfigure()


def outcome(prepared: Path, folder: Path, fail_at: int, error: Callable[[], Exception]) -> tuple[Calls, list[str]]:
    shutil.copytree(prepared, folder)
    world, calls = World(folder), Calls(fail_at, error)
    try:
        return calls, world.run(calls)
    finally:
        world.close()
        shutil.rmtree(folder)


def test_every_duty_of_the_maintainer_has_something_to_do_here(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "world")
    world = World(tmp_path / "world")
    here = {type(duty).__name__ for duty in world.duties(Calls(0, Exception))}
    world.close()
    others = ("tests", "supervisor.store.postgres")  # another engine's may have been imported
    assert here | {"StartUp", "BurstWatch", "LeaseRenewal"} == {
        kind.__name__ for kind in Duty.__subclasses__() if not kind.__module__.startswith(others)
    }


@pytest.mark.timeout(300)  # it looks at all processes of the machine at each call
@pytest.mark.fault(65, 66)
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("busy", 1),
        pytest.param("refused", 1, marks=pytest.mark.long),
        # Of the calls that come from several duties each of the first ones
        pytest.param("busy", 2, marks=pytest.mark.long),
        pytest.param("full", 1, marks=pytest.mark.long),
        pytest.param("bug", 1, marks=pytest.mark.long),
    ],
)
def test_whichever_call_fails_once_everything_is_done_in_the_end(
    prepared: Path, tmp_path: Path, kind: str, most: int
) -> None:
    calls, left = outcome(prepared, tmp_path / "sound", 0, ERRORS[kind])
    assert left == []
    chosen = [n for n, name in enumerate(calls.names, 1) if calls.names[:n].count(name) <= most]
    wrong = {}
    for number in chosen:
        failed, left = outcome(prepared, tmp_path / "world", number, ERRORS[kind])
        if left:
            wrong[f"{number}: {failed.names[number - 1]}"] = left
    assert wrong == {}
