"""When duties run, and what the failure of one costs the others: with a clock and a list, without a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreBusy, StoreError, StoreGone, StoreUnavailable
from supervisor.maintenance.reports import Poller
from supervisor.maintenance.scheduler import LONGEST_PAUSE, Scheduler

BUG = ZeroDivisionError("division by zero")
REFUSED = StoreError("app.db: not today")
BUSY = StoreBusy("app.db: timed out while another transaction held the write lock")
FULL = StoreUnavailable("app.db: the disk is full")
REMOVED = StoreGone("app.db: the file has been removed", replaced=False)


@dataclass
class Clock:
    """Both clocks; the wall's is a million seconds ahead, and can be put back."""

    at: float = 100.0
    wall: float = 1_000_000.0

    def steady(self) -> float:
        return self.at

    def now(self) -> float:
        return self.wall + self.at


class Noted(Duty):
    """Writes its name into the list, then does what it is told."""

    def __init__(self, ground: Ground, name: str, every: float = 10.0, **given: object) -> None:
        self.name, self.every = name, every
        self.rest = given.get("rest")  # type: ignore[assignment]
        self.needs = given.get("needs", Needs.FILE)  # type: ignore[assignment]
        self._ground = ground
        self.exact: float | None = None
        self.error: Exception | None = None
        self.result = Result()
        self.takes = 0.0

    def next_at(self, now: float) -> float | None:
        return self.exact

    def run(self, now: float) -> Result:
        self._ground.ran.append(self.name)
        self._ground.clock.at += self.takes
        if self.error is not None:
            raise self.error
        return self.result


@dataclass
class Ground:
    clock: Clock = field(default_factory=Clock)
    ran: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)

    def duty(self, name: str, every: float = 10.0, **given: object) -> Noted:
        return Noted(self, name, every, **given)

    def scheduler(self, *duties: Duty) -> Scheduler:
        """After the first pass, in which every duty runs."""
        made = Scheduler(
            duties,
            between=lambda: self.beats.append(self.clock.at),
            failed=self.errors.append,
            steady=self.clock.steady,
            wall=self.clock.now,
        )
        made.perform()
        self.ran.clear()
        return made

    def after(self, scheduler: Scheduler, seconds: float) -> list[str]:
        """What ran when so much time had passed, as the maintainer's loop does it."""
        self.ran.clear()
        end = self.clock.at + seconds
        for _ in range(10_000):
            due = scheduler.next_at()
            if due > end:
                break
            self.clock.at = max(self.clock.at, due)
            scheduler.perform()
        self.clock.at = max(self.clock.at, end)
        return list(self.ran)


@pytest.fixture
def ground() -> Ground:
    return Ground()


class TestWhen:
    def test_intervals_that_end_at_about_the_same_time_cost_one_wake_up(self, ground: Ground) -> None:
        duties = [ground.duty("one", every=1.0), ground.duty("two", every=1.0), ground.duty("slow", every=60.0)]
        scheduler = ground.scheduler(*duties)
        ground.clock.at += 0.15
        scheduler.hasten(duties[1])
        scheduler.attend(duties[1])  # from now on it is 0.15 s behind the first

        ground.after(scheduler, 1.0)

        assert ground.ran == ["one", "two"]
        assert ground.beats[-2:] == [pytest.approx(101.0)] * 2

    def test_a_change_brings_no_interval_to_an_early_end(self, ground: Ground) -> None:
        watch, checkpoint = ground.duty("watch", rest=0.0), ground.duty("checkpoint", every=1.0)
        scheduler = ground.scheduler(watch, checkpoint)
        ground.clock.at += 0.9
        scheduler.changed()

        scheduler.perform()

        assert ground.ran == ["watch"]

    def test_a_duty_runs_at_its_interval_and_others_at_theirs(self, ground: Ground) -> None:
        scheduler = ground.scheduler(ground.duty("often", 1.0), ground.duty("rarely", 3.0))
        assert ground.after(scheduler, 3.5) == ["often", "often", "often", "rarely"]

    def test_an_exact_time_is_kept_however_long_the_interval_is(self, ground: Ground) -> None:
        duty = ground.duty("plan", 1000.0)
        scheduler = ground.scheduler(duty)
        duty.exact = ground.clock.now() + 7.25
        assert scheduler.next_at() == pytest.approx(ground.clock.at + 7.25)
        assert ground.after(scheduler, 7.0) == []
        assert ground.after(scheduler, 0.2) == []
        duty.takes = 1000.0
        assert ground.after(scheduler, 0.1) == ["plan"]

    def test_an_exact_time_comes_when_the_wall_clock_says_so(self, ground: Ground) -> None:
        duty = ground.duty("plan", 1000.0)
        scheduler = ground.scheduler(duty)
        duty.exact = ground.clock.now() + 3600
        ground.clock.wall += 3600  # it is set ahead
        scheduler.perform()
        assert ground.ran == ["plan"]

    def test_a_change_runs_who_is_concerned_and_nobody_twice_within_its_rest(self, ground: Ground) -> None:
        scheduler = ground.scheduler(ground.duty("deaf", 1000.0), ground.duty("keen", 1000.0, rest=0.5))
        ground.clock.at += 10
        scheduler.changed()
        assert ground.after(scheduler, 0.1) == ["keen"]
        scheduler.changed()
        assert ground.after(scheduler, 0.3) == []
        assert ground.after(scheduler, 0.2) == ["keen"]
        assert ground.after(scheduler, 100) == []

    def test_who_stopped_at_its_bound_goes_on_after_the_others(self, ground: Ground) -> None:
        long, other = ground.duty("long", 1000.0), ground.duty("other", 1000.0, rest=0.0)
        scheduler = ground.scheduler(long, other)
        long.result = Result(more=True)
        scheduler.hasten(long)
        scheduler.changed()
        scheduler.perform()
        assert ground.ran == ["long", "other"]
        long.result = Result()
        assert ground.after(scheduler, 1) == ["long"]

    def test_news_of_one_runs_the_others_in_the_same_pass_but_not_itself(self, ground: Ground) -> None:
        teller = ground.duty("teller", 1000.0, rest=0.0)
        scheduler = ground.scheduler(teller, ground.duty("listener", 1000.0, rest=0.0))
        teller.result = Result(news=True)
        scheduler.hasten(teller)
        scheduler.perform()
        assert ground.ran == ["teller", "listener"]
        assert ground.after(scheduler, 100) == []


@pytest.mark.parametrize("error", [BUG, REFUSED, FULL, BUSY], ids=lambda error: type(error).__name__)
class TestFailing:
    @pytest.mark.fault(66)
    def test_news_is_not_forgotten_by_who_failed_to_look(self, ground: Ground, error: Exception) -> None:
        duty = ground.duty("keen", 1000.0, rest=0.0)
        scheduler = ground.scheduler(duty)
        scheduler.changed()
        duty.error = error
        assert ground.after(scheduler, 0.05) == ["keen"]
        duty.error = None
        assert ground.after(scheduler, 1) == ["keen"]
        assert ground.after(scheduler, 100) == []

    @pytest.mark.fault(64)
    def test_the_others_go_on_as_if_nothing_had_happened(self, ground: Ground, error: Exception) -> None:
        bad = ground.duty("bad", 1.0)
        scheduler = ground.scheduler(bad, ground.duty("good", 1.0), ground.duty("writer", 1.0, needs=Needs.WRITING))
        bad.error = error
        ran = ground.after(scheduler, 30.5)
        assert ran.count("good") == 30
        assert ran.count("writer") == 30
        assert 7 <= ran.count("bad") <= 40  # 0.1 s, 0.2 s … apart

    def test_it_is_told_since_when_and_why_until_it_succeeds(self, ground: Ground, error: Exception) -> None:
        bad = ground.duty("bad", 1000.0)
        scheduler = ground.scheduler(bad)
        bad.error = error
        scheduler.hasten(bad)
        began = ground.clock.now()
        ground.after(scheduler, 20)
        assert scheduler.failing["bad"].since == began
        assert str(error) in scheduler.failing["bad"].error
        assert ground.errors
        bad.error = None
        ground.after(scheduler, LONGEST_PAUSE)
        assert scheduler.failing == {}
        assert scheduler.trouble is None


def test_an_error_that_is_a_bug_is_told_with_its_class(ground: Ground) -> None:
    bad = ground.duty("bad")
    scheduler = ground.scheduler(bad)
    bad.error = BUG
    scheduler.hasten(bad)
    scheduler.perform()
    assert scheduler.failing["bad"].error == "ZeroDivisionError: division by zero"
    assert scheduler.trouble is None


def test_what_failed_in_part_is_told_and_not_put_off(ground: Ground) -> None:
    duty = ground.duty("many", 1.0)
    scheduler = ground.scheduler(duty)
    duty.result = Result(problem="worker tag-1: refused")
    assert ground.after(scheduler, 5.5).count("many") == 5
    assert scheduler.failing["many"].error == "worker tag-1: refused"
    duty.result = Result()
    ground.after(scheduler, 1)
    assert scheduler.failing == {}


class TestBusy:
    """Another program holds the lock: every attempt takes as long as an attempt may."""

    @pytest.fixture
    def writers(self, ground: Ground) -> list[Noted]:
        return [ground.duty(f"writer {n}", 1.0, needs=Needs.WRITING) for n in range(5)]

    def blocked(self, ground: Ground, writers: list[Noted]) -> Scheduler:
        scheduler = ground.scheduler(*writers, ground.duty("reader", 0.5))
        for writer in writers:
            writer.error, writer.takes = BUSY, 6.0
        return scheduler

    def test_one_pass_waits_once_and_readers_have_their_turn(self, ground: Ground, writers: list[Noted]) -> None:
        scheduler = self.blocked(ground, writers)
        ground.clock.at += 10
        for _ in range(20):
            ground.ran.clear()
            began = ground.clock.at
            scheduler.perform()
            assert ground.clock.at - began <= 6.0
            assert ground.ran.count("reader") <= 1
            ground.clock.at += 0.2
        assert max(after - before for before, after in zip(ground.beats, ground.beats[1:], strict=False)) <= 10.2

    def test_every_writer_has_its_turn_and_all_go_on_at_once_when_one_succeeds(
        self, ground: Ground, writers: list[Noted]
    ) -> None:
        scheduler = self.blocked(ground, writers)
        ran = ground.after(scheduler, 120)
        turns = [ran.count(writer.name) for writer in writers]
        assert min(turns) >= 2
        assert max(turns) - min(turns) <= 1
        assert scheduler.trouble is BUSY
        for writer in writers:
            writer.error, writer.takes = None, 0.0
        assert {writer.name for writer in writers} <= set(ground.after(scheduler, 1.0))
        assert scheduler.trouble is None


def test_nothing_that_needs_the_file_runs_while_it_is_gone(ground: Ground) -> None:
    check = ground.duty("check", 1.0, needs=Needs.NOTHING)
    reader, writer = ground.duty("reader", 1.0), ground.duty("writer", 1.0, needs=Needs.WRITING)
    scheduler = ground.scheduler(check, reader, writer)
    check.error = writer.error = REMOVED
    scheduler.hasten(writer)
    assert set(ground.after(scheduler, 30)) <= {"check", "writer"}
    assert ground.ran.count("writer") <= 1
    assert scheduler.trouble is REMOVED
    assert not scheduler.may_run(reader)
    check.error = writer.error = None
    assert {"check", "reader", "writer"} <= set(ground.after(scheduler, 10))
    assert scheduler.trouble is None


@pytest.mark.parametrize("error", [BUG, REFUSED, FULL, BUSY], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("times", [1, 2, 7])
def test_whatever_fails_however_often_all_is_done_in_the_end(ground: Ground, error: Exception, times: int) -> None:
    duties = [ground.duty(f"duty {n}", 1000.0, rest=0.1, needs=Needs(n % 3)) for n in range(6)]
    scheduler = ground.scheduler(*duties)
    for bad in duties:
        failures = iter([error] * times)
        run = bad.run

        def failing(now: float, run: Callable[[float], Result] = run, left: object = failures) -> Result:
            for one in left:  # type: ignore[attr-defined]
                raise one
            return run(now)

        bad.run = failing  # type: ignore[method-assign]
    scheduler.changed()
    assert sorted(ground.after(scheduler, 60)) == [duty.name for duty in duties]
    assert scheduler.failing == {}


def test_a_slow_check_of_what_operators_set_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 0.0, 1.0, 1.03))
    monkeypatch.setattr("supervisor.maintenance.reports.time", SimpleNamespace(monotonic=lambda: next(clock)))
    poller = Poller("cancels", list, lambda _: None)
    poller.run(0.0)
    assert poller.rest == pytest.approx(0.2)
    poller.run(0.0)
    assert poller.rest == pytest.approx(0.6)
