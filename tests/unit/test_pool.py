"""A pool's choices among its own workers, and which it lacks or has too many, by their numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.config import load
from supervisor.domain.memory_shares import Grant
from supervisor.domain.process_health import Restarts, TemplateDeaths
from supervisor.supervision.exit_reason import DeathRecord, Effect, ExitReport
from supervisor.supervision.plan import Missing, next_to_serve, plan, within
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.release import Release, Releases, ReleaseState
from supervisor.supervision.watchdog import is_cautious_enough, look_at
from supervisor.supervision.worker_process import RELOADED, Request, WorkerProcess
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State


class Crew:
    """A pool of devices 0 and 1 whose workers are there in name only."""

    def __init__(self, folder: Path) -> None:
        (folder / "supervisor.toml").write_text('[pools.tag]\nhandler = "jobs:tag"\nworkers = 3\ngpus = [0, 1]\n')
        self.settings = load(folder / "supervisor.toml").pools["tag"]
        self.pool = Pool(Releases(Release(self.settings)), os.eventfd(0))
        self.pool.scale.target = 3
        self._board = Scoreboard.create(folder / "board")
        self._number = 0

    def ask(self, *, device: str | None = None, caution: int = 0) -> WorkerProcess:
        self._number += 1
        name, slot = self.pool.workers.next_name("tag"), self._board.slot(self._number)
        device = device or self.pool.next_device()
        release, template = self.pool.code.current, cast("Any", None)
        worker = WorkerProcess(Request(name, name, self._number, slot, release, template, device, caution), 0.0)
        self.pool.workers[name] = worker
        return worker

    def lose(self, worker: WorkerProcess) -> None:
        del self.pool.workers[worker.request.incarnation]


def look(pool: Pool, now: float) -> None:
    for worker in pool.workers.living():
        look_at(pool, worker, now)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    os.close(made.pool.wake)


def test_workers_are_spread_over_the_devices_and_the_dead_are_replaced_on_theirs(crew: Crew) -> None:
    workers = [crew.ask() for _ in range(4)]
    assert [worker.request.device for worker in workers] == ["0", "1", "0", "1"]
    for worker in workers[1:3]:
        crew.lose(worker)
    successors = [crew.ask(), crew.ask()]
    assert [worker.request.name for worker in successors] == ["tag-2", "tag-3"]
    assert {worker.request.device for worker in successors} == {"0", "1"}


def test_each_stale_worker_is_succeeded_on_its_own_device(crew: Crew) -> None:
    first, second, third = (crew.ask(device=device) for device in ("1", "0", "1"))
    for worker in (first, second, third):
        worker.stale = RELOADED

    assert crew.ask().request.device == "1"
    assert crew.ask().request.device == "0"  # although the first has not been told to leave yet
    first.drain()
    second.drain()
    assert crew.ask().request.device == "1"


def test_a_pool_that_grows_counts_the_devices_of_those_about_to_be_replaced(crew: Crew) -> None:
    crew.ask(device="0").stale = "max_jobs_per_worker"

    assert crew.ask().request.device == "1"


def test_a_worker_s_life_goes_forward_only(crew: Crew) -> None:
    worker = crew.ask()
    worker.drain()
    assert worker.leaving
    assert not worker.notice_ready(worker.slot.read())
    worker.ended(5.0)
    worker.drain()
    worker.ended(7.0, status=9)
    assert (worker.living, worker.leaving, worker.end.at, worker.end.status) == (False, False, 5.0, 9)


def staff(crew: Crew, target: int, **counts: int) -> None:
    """So many workers `starting`, `busy`, `idle`, `stale` (to be replaced), `leaving`, and `unexplained` (dead)."""
    crew.pool.scale.target = target
    for kind, count in counts.items():
        for _ in range(count):
            worker = crew.ask()
            worker.set_up = kind != "starting"
            worker.slot.state(State.IDLE if kind == "idle" else State.BUSY)
            worker.stale = RELOADED if kind == "stale" else ""
            if kind == "leaving":
                worker.drain()
            if kind == "unexplained":
                worker.ended(1.0)


def try_new_code(crew: Crew) -> None:
    crew.pool.code.old = Release(crew.settings, state=ReleaseState.OUTGOING)
    crew.pool.code.current.on_trial = True


def fail(crew: Crew) -> None:
    crew.pool.code.current.restarts = Restarts(failed_setups=1)


def isolate(crew: Crew) -> None:
    crew.pool.code.current.template_deaths = TemplateDeaths((99.0, 100.0))


@pytest.mark.parametrize(
    ("target", "counts", "states", "expected"),
    [
        (3, {}, [], Missing(3)),
        (3, {"busy": 2, "unexplained": 1}, [], Missing(0)),
        (3, {}, [fail], Missing(1)),
        (3, {"starting": 1}, [fail], Missing(0)),
        (2, {"stale": 2}, [], Missing(1)),
        (2, {"stale": 2, "starting": 1}, [], Missing(0)),
        # The old code keeps up the numbers until the new one has proved itself.
        (2, {"stale": 1}, [try_new_code], Missing(1, 1)),
        (2, {"stale": 1, "starting": 1}, [try_new_code, fail], Missing(0, 1)),
        (2, {"stale": 2}, [try_new_code], Missing(1, 0)),
        (0, {}, [try_new_code], Missing(0, 0)),
        (2, {"stale": 1}, [try_new_code, isolate], Missing(1, 1)),
        (4, {}, [isolate], Missing(1)),
        (4, {"busy": 1}, [isolate], Missing(0)),
        (4, {"unexplained": 1}, [isolate], Missing(0)),
    ],
)
def test_what_a_pool_lacks_follows_from_numbers(
    crew: Crew, target: int, counts: dict[str, int], states: list[Callable[[Crew], None]], expected: Missing
) -> None:
    staff(crew, target, **counts)
    for state in states:
        state(crew)
    assert plan(crew.pool, 105.0).start == expected


@pytest.mark.parametrize(
    ("target", "counts", "fixed", "expected"),
    [
        (1, {"busy": 2, "idle": 1}, False, ["idle"]),
        (1, {"busy": 3}, False, []),
        (1, {"busy": 3}, True, ["busy", "busy"]),
        (2, {"stale": 2, "busy": 1}, False, ["stale"]),
        (2, {"stale": 2, "starting": 1}, False, []),
    ],
)
def test_who_leaves_follows_from_numbers(
    crew: Crew, target: int, counts: dict[str, int], fixed: bool, expected: list[str]
) -> None:
    staff(crew, target, **counts)
    crew.pool.scale.fixed = target if fixed else None
    kinds = {State.IDLE: "idle", State.BUSY: "busy"}
    leave = plan(crew.pool, 0.0).leave
    assert ["stale" if worker.stale else kinds[worker.slot.read().state] for worker in leave] == expected


def with_spares(crew: Crew, *devices: str, target: int = 1, spares: int = 1) -> list[WorkerProcess]:
    """Workers that are set up and wait, one on each of these devices."""
    crew.pool.code.current.settings, crew.pool.scale.target = crew.settings._replace(spares=spares), target
    workers = [crew.ask(device=device) for device in devices]
    for worker in workers:
        worker.set_up = True
        worker.slot.state(State.SPARE)
    return workers


def serve(crew: Crew) -> list[WorkerProcess]:
    """Let spares take over the free places."""
    chosen = []
    while (spare := next_to_serve(crew.pool)) is not None:
        spare.serve()
        chosen.append(spare)
    return chosen


@pytest.mark.fault(97)
def test_a_place_is_free_when_its_worker_and_all_that_it_has_started_have_ended(crew: Crew) -> None:
    first, second, third, fourth = workers = with_spares(crew, "0", "1", "0", "1", target=2)
    assert serve(crew) == [first, second]
    assert [worker.slot.page.serve for worker in workers] == [True, True, False, False]
    first.drain()
    assert serve(crew) == []
    first.ended(1.0)
    assert serve(crew) == []
    crew.lose(first)
    crew.pool.workers.unswept[first.request.incarnation] = cast("Any", None)
    assert serve(crew) == []
    crew.pool.workers.unswept.clear()
    assert serve(crew) == [third]
    second.end.swept = True  # the kernel has not told us yet
    assert serve(crew) == []
    second.ended(1.0)
    assert serve(crew) == [fourth]  # although its end has not been reported


@pytest.mark.fault(113)
def test_a_worker_in_its_teardown_keeps_its_place_only_if_it_may_have_left_processes_behind(crew: Crew) -> None:
    first, second, third = with_spares(crew, "0", "1", "0")
    assert serve(crew) == [first]
    first.slot.cease(1.0, alone=True)
    assert serve(crew) == [second]
    second.slot.cease(1.0, alone=False)
    assert serve(crew) == []
    second.ended(2.0)
    second.end.swept = True
    assert serve(crew) == [third]


def test_a_worker_in_its_teardown_is_leaving_although_nobody_asked_it_to(crew: Crew) -> None:
    worker = crew.ask()
    worker.process.pid = 1
    worker.slot.state(State.DRAINING)  # so quick that nobody has seen it ready
    assert not worker.notice_ready(worker.slot.read())
    worker.slot.cease(1.0, alone=True)
    assert worker.notice_ready(worker.slot.read())
    assert worker.leaving


def test_spares_of_the_current_code_come_first_and_then_those_on_the_least_used_device(crew: Crew) -> None:
    old, first, second, third = with_spares(crew, "0", "0", "0", "1", target=2, spares=2)
    old.stale = RELOADED
    assert serve(crew) == [first, third]
    for ended, successor in ((first, second), (second, old)):
        ended.ended(1.0)
        ended.end.swept = True
        assert serve(crew) == [successor]


def death(*, uncommitted: int = 0, last_job: int = 0) -> ExitReport:
    return ExitReport("signal", "", "nothing", Effect.DIED, uncommitted=uncommitted, last_job=last_job)


class TestACautiousWorker:
    """It takes one job at a time as long as it lives, so it must not live as long as others."""

    @pytest.fixture
    def worker(self, crew: Crew) -> WorkerProcess:
        worker = crew.ask(caution=2)
        worker.set_up = True
        worker.slot.state(State.BUSY)
        crew.pool.scale.target = 1
        return worker

    @pytest.mark.fault(45)
    def test_replaces_one_that_died_with_outcomes_or_was_cautious_itself(self) -> None:
        deaths = DeathRecord()
        deaths.ended(death(), 0, "")
        assert (deaths.next_caution(), deaths.suspects) == (0, ())
        deaths.ended(death(uncommitted=20, last_job=7), 0, "")
        assert [deaths.next_caution(), deaths.next_caution()] == [20, 0]
        deaths.ended(death(), 20, "")
        assert (deaths.next_caution(), deaths.suspects) == (20, (7,))
        deaths.ended(ExitReport("exit", "", "crash", Effect.DIED, (7, 2), last_job=7), 20, "")
        assert (deaths.next_caution(), deaths.suspects) == (20, (7,))

    def test_is_replaced_when_more_jobs_than_were_lost_have_gone_well_for_a_while(self, worker: WorkerProcess) -> None:
        assert not is_cautious_enough(worker, 2, 1000.0)
        assert not is_cautious_enough(worker, 3, 29.0)  # other jobs may have come before the suspect
        assert is_cautious_enough(worker, 3, 30.0)
        worker.request = worker.request._replace(caution=0)
        assert not is_cautious_enough(worker, 3, 30.0)

    def test_stays_where_memory_is_scarce(self, crew: Crew, worker: WorkerProcess) -> None:
        """Until its successor is ready, nobody would work."""
        crew.pool.take(Grant({"": 1}, {}))
        commit(worker, 3)
        look(crew.pool, 200.0)
        assert not worker.stale

    def test_leaves_when_its_successor_is_ready(self, crew: Crew, worker: WorkerProcess) -> None:
        pool = crew.pool
        commit(worker, 3)
        look(pool, 200.0)
        assert worker.stale
        assert plan(pool, 200.0).start == Missing(1, 0)
        successor = crew.ask()
        assert plan(pool, 200.0).leave == []
        successor.set_up = True
        look(pool, 200.0)
        assert plan(pool, 200.0).leave == [worker]
        assert not successor.stale


def commit(worker: WorkerProcess, jobs: int) -> None:
    for job in range(1, jobs + 1):
        worker.slot.begin(job, 1, 0.0, 0.0)
        worker.slot.finish(job)
    worker.slot.page.settled = jobs


def test_at_the_start_a_device_is_not_passed_over_because_its_worker_is_slower(crew: Crew) -> None:
    first, second, third = with_spares(crew, "0", "0", "1", target=2)
    third.set_up = False
    assert serve(crew) == [first]
    third.set_up = True
    assert serve(crew) == [third]
    # But the successor of a worker that has ended is not waited for.
    third.set_up, third.asked_at = False, 60.0
    third.serving = False
    assert serve(crew) == [second]


def test_surplus_workers_and_surplus_spares_leave_separately(crew: Crew) -> None:
    workers = with_spares(crew, "0", "1", "0", "1", target=3)
    serving = serve(crew)
    [spare] = [worker for worker in workers if worker not in serving]
    for worker in serving:
        worker.slot.state(State.BUSY)
    crew.pool.scale.fixed = crew.pool.scale.target = 1
    assert set(plan(crew.pool, 0.0).leave) < set(serving)
    assert len(plan(crew.pool, 0.0).leave) == 2
    crew.pool.scale.target, crew.pool.scale.fixed = 3, 3
    assert plan(crew.pool, 0.0).leave == []
    crew.pool.code.current.settings = crew.pool.settings._replace(spares=0)
    assert plan(crew.pool, 0.0).leave == [spare]


def test_what_is_shown_of_a_pool_in_a_reload_adds_up(crew: Crew) -> None:
    with_spares(crew, "0", "1", "0", "1", "0", target=2, spares=3)
    serving = serve(crew)
    assert crew.pool.desired == 5
    assert plan(crew.pool, 0.0).start == Missing(0, 0)  # spares are no workers that the load needs
    for worker in serving:
        worker.stale = RELOADED
    for leaving in (0, 1):
        shown = Pools(tag=crew.pool).status(0.0)["tag"]
        assert [shown[key] for key in ("size", "leaving", "spares")] == [2, leaving, 3]
        serving[0].drain()


@pytest.mark.parametrize(
    ("room", "old_first", "allowed"),
    [
        (0, False, (0, 0)),
        (1, False, (1, 0)),
        (1, True, (0, 1)),
        (2, True, (0, 2)),
        (3, True, (1, 2)),
        (3, False, (1, 2)),
    ],
)
def test_in_little_memory_code_that_has_failed_comes_second(
    room: int, old_first: bool, allowed: tuple[int, int]
) -> None:
    assert within(Missing(1, 2), room, old_first=old_first) == allowed
