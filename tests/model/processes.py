"""What our own processes do with the table: clients, workers, and maintainers, who live and die."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.recovery import (
    Charge,
    JobPolicy,
    observation_time,
    settle_expired,
    settle_held,
    settle_interrupted,
)
from supervisor.domain.settlement import Failure, Settlement, cancelled, crashed, done, failed, released
from supervisor.maintenance.deaths import DeathReport, Deaths
from supervisor.maintenance.recovery import Recovery
from supervisor.system.scoreboard import Scoreboard
from tests.model.ground import Ground, Place
from tests.model.rows import Row
from tests.store.kit import BROKEN, LOCK, NOW, POLICY, supervisor_record

END = 9e9  # beyond anything delayed
FAR = 4e9  # beyond the expiry of any foreign claim: those are stamped with the real time
DIED = Failure("crash", "the worker died")

types = st.sampled_from(["a", "b"])
keys = st.sampled_from([None, None, "k", "l"])
places = st.integers(0, 3)
some = st.integers(0, 30)  # which of the jobs, or of the claims ever granted
ends = st.sampled_from(
    ["done", "done", "with children", "again", "failed", "later", "hopeless", "released", "crashed", "cancelled"]
)
new_jobs = st.builds(
    NewJob,
    types,
    st.sampled_from(["{}", '{"n":1}']),
    priority=st.sampled_from([0, 0, 0, 5, -5]),
    requires=st.sampled_from(["", "", "", "x", "x y"]),
    scheduled_at=st.sampled_from([NOW, NOW - 5, NOW - 9, NOW + 20, NOW + 500]),
    max_attempts=st.sampled_from([None, None, 1, 2]),
    unique_key=keys,
    extra=st.just({}),
    after=st.just(()),
    on_failed=st.just("cancel"),
    on_duplicate=st.just("return"),
)


class Processes(RuleBasedStateMachine):
    """Three workers of two supervisors with their maintainers. `Ground` says what holds after every step; at
    the end everything is drained.
    """

    engine = ""
    fresh_url: Callable[[str, Path], str]  # from an engine and a folder to the URL of an empty database
    ground: Ground

    @initialize(jobs=st.lists(new_jobs, min_size=2, max_size=5))
    def open(self, jobs: list[NewJob]) -> None:
        self.ground = Ground(self.engine, self.fresh_url)
        self.ground.enqueue(jobs)

    @invariant()
    def the_store_is_as_it_must_be(self) -> None:
        if hasattr(self, "ground"):
            self.ground.check()

    # Picking what a step is about, so that few steps are idle

    def rows(self, *statuses: Status) -> list[Row]:
        return sorted(row for row in self.ground.table.rows.values() if row.status in statuses)

    def running(self) -> bool:
        return bool(self.rows(Status.RUNNING))

    def held(self) -> bool:
        """Whether a worker that lives holds anything."""
        living = {worker.incarnation for worker in self.ground.places}
        return any(row.locked_by in living for row in self.rows(Status.RUNNING))

    def granted(self, which: int) -> tuple[str, Claim]:
        """Of all claims that ever were, rather those on jobs that their owner holds by another claim."""
        ground, running = self.ground, {row.id: row for row in self.rows(Status.RUNNING)}
        late = [(o, c) for o, c in ground.granted if c.job_id in running and c.token != running[c.job_id].claim_token]
        same = [(owner, claim) for owner, claim in late if running[claim.job_id].locked_by == owner]
        chosen = [same, late, ground.granted][which % 3] or ground.granted
        return chosen[-1 - which % len(chosen)]

    def busy(self, place: int) -> Place:
        """A worker, rather one that believes to hold something."""
        workers = [worker for worker in self.ground.places if worker.held] or self.ground.places
        return workers[place % len(workers)]

    # Time

    @rule(by=st.sampled_from([1.0, 15.0, LOCK + 1, 600.0, -5.0, -3600.0, FAR]))
    def the_clock_moves(self, by: float) -> None:
        """The wall clock. It goes back as well, from a far future to where it was."""
        ground = self.ground
        ground.now = ground.now + by if by != FAR else NOW if ground.now >= FAR else FAR

    # Clients and workers

    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=2))
    def enqueue(self, jobs: list[NewJob]) -> None:
        self.ground.enqueue(jobs)

    @rule(which=st.integers(0, 11))
    def a_worker_claims(self, which: int) -> None:
        """Hypothesis likes the first name among the rules with few arguments best; so this is the one."""
        want, place = divmod(which, 3)
        worker = self.ground.places[place]
        worker.held += self.ground.settle_and_claim(worker, [], want + 1).claims

    @precondition(lambda self: self.ground.granted)
    @rule(place=places, finished=st.lists(ends, min_size=1, max_size=3), want=st.integers(0, 3))
    def work(self, place: int, finished: list[str], want: int) -> None:
        """Settle the first of what is held, whether it still is or not, and claim."""
        worker = self.busy(place)
        settlements = [self.end(kind, claim) for kind, claim in zip(finished, worker.held, strict=False)]
        settle_and_claim = self.ground.settle_and_claim(worker, settlements, want)
        worker.held = worker.held[len(settlements) :] + settle_and_claim.claims

    @precondition(lambda self: self.ground.granted)
    @rule(which=some, kind=ends, twice=st.booleans(), want=st.integers(0, 1))
    def settle_late(self, which: int, kind: str, twice: bool, want: int) -> None:
        """Any claim that ever was, by its owner: dead, stopped until now, or not sure that it was heard."""
        owner, claim = self.granted(which)
        self.ground.settle_and_claim(None, [self.end(kind, claim)] * (1 + twice), want, owner=owner)

    @precondition(lambda self: self.ground.granted)
    @rule(place=places, which=some, kind=ends)
    def settle_anothers(self, place: int, which: int, kind: str) -> None:
        self.ground.settle_and_claim(self.ground.places[place], [self.end(kind, self.granted(which)[1])])

    def end(self, kind: str, claim: Claim) -> Settlement:
        row = self.ground.table.rows.get(claim.job_id)
        key = None if row is None else row.unique_key
        makers: dict[str, Any] = {
            "done": lambda: done(claim, '"ok"', started_at=self.ground.now, progress=1.0),
            "with children": lambda: done(claim, None, children=(NewJob("a", "{}"), NewJob("b", "[]", 5, "x"))),
            "again": lambda: done(claim, '"again"', children=(NewJob(claim.type, "{}", unique_key=key),)),
            "failed": lambda: failed(claim, BROKEN, POLICY, chance=0.5, started_at=self.ground.now),
            "later": lambda: failed(claim, BROKEN, POLICY, chance=0.5, after=30.0, progress=0.5),
            "hopeless": lambda: failed(claim, BROKEN, POLICY, chance=0.5, permanent=True),
            "released": lambda: released(claim),
            "crashed": lambda: crashed(claim, DIED, POLICY, 3, chance=0.5),
            "cancelled": lambda: cancelled(claim),
        }
        settlement: Settlement = makers[kind]()
        return settlement

    # Deaths

    @precondition(lambda self: self.held())
    @rule(
        place=places,
        charge=st.sampled_from(["crash", "crash", "attempt", "cancel", "nothing"]),
        begun=st.booleans(),
        reports=st.integers(1, 2),
    )
    def a_worker_dies(self, place: int, charge: Charge, begun: bool, reports: int) -> None:
        ground, worker = self.ground, self.busy(place)
        run = (worker.held[0].job_id, worker.held[0].token) if begun and worker.held else None
        policy = ground.policies[worker.supervisor]
        report = DeathReport(worker.incarnation, worker.name, charge, *(run or (0, 0)), policy.encode())
        for _ in range(reports):
            settled = Deaths(ground.desk.maintenance.locks).settle(report, ground.now)
            fates = settle_held(ground.table.held_by(worker.incarnation), run, charge, DIED, policy, 0.5)
            assert settled == self.meet(worker, fates)
        assert ground.desk.maintenance.registry.worker(worker.incarnation) is None
        ground.bury(worker)

    def meet(self, worker: Place, fates: list[Settlement]) -> int:
        ground = self.ground
        return sum(ground.table.settle(worker.incarnation, fate, ground.now, worker.name) for fate in fates)

    @precondition(lambda self: self.held())
    @rule(letter=st.sampled_from(["a", "b"]), known=st.booleans(), begun=st.booleans())
    def a_supervisor_dies(self, letter: str, known: bool, begun: bool) -> None:
        """With its workers. Its scoreboard is found, and tells what had begun, or is gone."""
        ground, name = self.ground, self.ground.supervisor(letter)
        board = ground.folder / f"{name}.board"
        runs = {w.name: (w.held[0].job_id, w.held[0].token) for w in ground.staff(letter) if begun and w.held}
        if known:
            self.post(Scoreboard.create(board), letter, runs)
        # Registered only now: within its own process nobody can tell a living supervisor's lock from a free one.
        record = supervisor_record(name, ground.desk.engine, "/nowhere", scoreboard=str(board))
        ground.desk.maintenance.registry.register(record)
        recovery = Recovery(ground.desk.maintenance.registry, ground.desk.maintenance.locks, "another")
        recovery.run(ground.now)
        jobs = quarantined = 0
        for worker in ground.staff(letter):
            held = ground.table.held_by(worker.incarnation)
            run = runs.get(worker.name, (0, 0)) if known else None
            fates = settle_interrupted(held, run, ground.policies[letter], 0.5)
            jobs += self.meet(worker, fates)
            quarantined += sum(fate.status is Status.QUARANTINED for fate in fates)
        assert recovery.recovered == Counter(supervisors=1, jobs=jobs, quarantined=quarantined)
        assert ground.desk.maintenance.registry.workers_of(name) == ground.desk.maintenance.registry.supervisors() == []
        ground.lives[letter] += 1
        for worker in ground.staff(letter):
            ground.bury(worker)

    def post(self, board: Scoreboard, letter: str, runs: dict[str, tuple[int, int]]) -> None:
        for worker in self.ground.staff(letter):
            slot = board.slot(worker.slot)
            slot.assign(worker.incarnation, worker.name)
            if worker.name in runs:
                slot.begin(*runs[worker.name], 0.0, 0.0)

    # Locks

    @precondition(lambda self: self.held())
    @rule(letters=st.sampled_from(["ab", "a", "b"]), later=st.sampled_from([LOCK / 2, 0.0]))
    def renew(self, letters: str, later: float) -> None:
        ground = self.ground
        ground.now += later
        owners = [worker.incarnation for worker in ground.places if worker.supervisor in letters]
        times = ground.now + LOCK * 2 / 3, ground.now + LOCK
        assert ground.desk.maintenance.locks.renew(owners, *times) == ground.table.renew(owners, *times)

    @precondition(lambda self: self.running())
    @rule(later=st.sampled_from([0.0, LOCK + 1]), looks=st.sampled_from([1, 2, 5, 6]), pause=st.sampled_from([1, 1, 4]))
    def reclaim(self, later: float, looks: int, pause: int) -> None:
        """A reclaimer looks in time, or late."""
        self.ground.now += later
        for _ in range(looks):
            self.ground.clock += self.ground.reclaimer.every * pause
            self.look()

    def look(self) -> None:
        """Only what the reclaimer itself has seen expired and unchanged for long enough is taken."""
        ground, patience = self.ground, observation_time(LOCK)
        seen = ground.table.expired(ground.now)
        assert set(ground.desk.maintenance.locks.expired(ground.now, 1000)) == set(seen)
        ground.sightings = {row: ground.sightings.get(row, ground.clock) for row in seen}
        ground.expired |= dict.fromkeys(seen)
        ground.observer = ground.observer.look(seen, ground.clock, writable=True)
        result = ground.reclaimer.run(ground.now)
        ripe = [row for row in seen if ground.observer.watched[row] >= patience]
        assert result.done == len(ripe)
        for row in ripe:
            assert ground.clock - ground.sightings[row] >= patience
            assert ground.table.reclaim(row, self.fate_of_expired, ground.now)
            ground.take_times_of(row.job_id, within=1.0)  # the dice of the default backoff were not ours

    @precondition(lambda self: self.ground.expired)
    @rule(which=some)
    def reclaim_late(self, which: int) -> None:
        """A reclaimer that was stopped between its look and its deed; what it saw may have changed since."""
        ground = self.ground
        held = {(row.id, row.locked_by): row.expired for row in self.rows(Status.RUNNING)}
        changed = [seen for seen in ground.expired if held.get((seen.job_id, seen.owner), seen) != seen]
        chosen = changed if changed and which % 4 else list(ground.expired)
        seen = chosen[-1 - which % len(chosen)]
        taken = ground.desk.maintenance.locks.reclaim(seen, self.fate_of_expired, ground.now)
        assert taken == ground.table.reclaim(seen, self.fate_of_expired, ground.now)
        ground.take_times_of(seen.job_id, within=1.0)

    def fate_of_expired(self, claim: Claim, owner: str) -> Settlement:
        ground = self.ground
        worker = next((worker for worker in ground.places if worker.incarnation == owner), None)
        policy = JobPolicy() if worker is None else ground.policies[worker.supervisor]
        return settle_expired(claim, owner, policy, 0.5)

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "ground"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.drain()
        finally:
            self.ground.close()

    def drain(self) -> None:
        """Everybody dies; whoever comes then finds every job in its place and brings it to an end."""
        ground = self.ground
        for type_ in list(ground.table.paused):
            ground.desk.operations.controls.resume(type_)
            ground.table.paused.remove(type_)
        ground.now = END
        for letter in ("a", "b"):
            self.a_supervisor_dies(letter, known=True, begun=True)
        self.reclaim(0.0, 6, 1)
        last = ground.places[-1]
        for _ in range(3):  # the last claims may have delayed or brought forth some
            while ground.settle_and_claim(last, [], want=1000).claims:
                held = ground.table.held_by(last.incarnation)
                ground.settle_and_claim(last, [done(claim, '"drained"', started_at=END) for claim in held])
            ground.now += 1000.0
        ground.check()
        ground.check_errors()
        assert all(row.status.finished for row in ground.table.rows.values())
        assert ground.program.damage() == []
