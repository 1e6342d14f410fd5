"""A real store and the table in plain Python side by side, with what must hold after every step."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.recovery import JobPolicy, LeaseObserver
from supervisor.domain.settlement import Settlement
from supervisor.engine import open_engine
from supervisor.maintenance.locks import Reclaimer
from supervisor.store.base import Claims, Expired, JobSelector, SettledAndClaimed
from tests.model import rows
from tests.model.programs import PROGRAMS, UniqueBroken
from tests.model.rows import Row, row_of
from tests.model.table import UNFINISHED, Table
from tests.store.kit import LOCK, NOW, POLICY, Desk, worker_record

ALL = JobSelector(("a", "b"), "gpu x y")
FOREIGN_LOCK_TIME = 3600.0
_TIMES = ("scheduled_at", "locked_at", "lock_expires_at", "started_at", "completed_at")


@dataclass
class Place:
    """A worker's place at a supervisor: one incarnation after the other works there."""

    supervisor: str
    slot: int
    wanted: JobSelector
    claims: Claims
    life: int = 0
    held: list[Claim] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.supervisor}-{self.slot}"

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.life}"


class Ground:
    """`now` is the wall clock and moves as it likes; `clock` is the monotonic one."""

    def __init__(self, engine: str, fresh_url: Callable[[str, Path], str]) -> None:
        self._engine = engine
        # In memory where there is such a folder: thousands of histories wait for no disk.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="job-supervisor-model-", dir=memory))
        opened = open_engine(fresh_url(engine, self.folder))
        self.desk = Desk.at(opened)
        self.program = PROGRAMS[engine](opened.url)
        self.table = Table()
        self.now, self.clock = NOW, 1000.0
        self.policies = {letter: JobPolicy(POLICY, 3, recover, LOCK) for letter, recover in _RECOVER.items()}
        self.lives = dict.fromkeys(_RECOVER, 0)
        urgent = ALL._replace(min_priority=1)
        kinds = [("a", 1, JobSelector(("a", "b"))), ("a", 2, ALL), ("a", 3, urgent), ("b", 1, ALL)]
        self.places = [Place(*kind, self.desk.engine.claims()) for kind in kinds]
        store = self.desk.maintenance
        self.reclaimer = Reclaimer(store.locks, store.registry, LOCK, lambda: self.clock)
        self.observer: LeaseObserver[Expired] = LeaseObserver(self.reclaimer.every)
        self.expired: dict[Expired, None] = {}  # every one that was ever seen, in order
        self.sightings: dict[Expired, float] = {}
        self.granted: list[tuple[str, Claim]] = []
        self.tokens: dict[int, int] = {}
        self.meddled: set[int] = set()
        for place in self.places:
            self.register(place)

    def close(self) -> None:
        self.program.close()
        for place in self.places:
            place.claims.close()
        self.desk.close()
        shutil.rmtree(self.folder)

    # Who works here

    def supervisor(self, letter: str) -> str:
        return f"{letter}.{self.lives[letter]}"

    def staff(self, letter: str) -> list[Place]:
        return [place for place in self.places if place.supervisor == letter]

    def register(self, place: Place) -> None:
        owner, policy = self.supervisor(place.supervisor), self.policies[place.supervisor].encode()
        place.claims.register(worker_record(place.incarnation, owner, name=place.name, slot=place.slot, policy=policy))

    def bury(self, place: Place) -> None:
        """It is dead and settled; another incarnation takes its place."""
        place.life += 1
        place.held.clear()
        self.register(place)

    # Steps that several rules take

    def enqueue(self, jobs: Sequence[NewJob]) -> None:
        ids = self.desk.producer.enqueue(jobs)
        self.expect_new_rows()
        expected = {place: self.table.enqueue(jobs[place], self.now) for place in self._insertion_order(jobs)}
        assert ids == [expected[place] for place in range(len(jobs))]

    def _insertion_order(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        """On a server, jobs with unique keys come first, by their keys, so that no two transactions deadlock."""
        if self._engine == "sqlite" or sum(job.unique_key is not None for job in jobs) < 2:
            return range(len(jobs))
        keyed = [at for at, job in enumerate(jobs) if job.unique_key is not None]
        keyed.sort(key=lambda at: (jobs[at].type, jobs[at].unique_key or ""))
        return [*keyed, *(at for at, job in enumerate(jobs) if job.unique_key is None)]

    def settle_and_claim(
        self,
        place: Place | None,
        ends: Sequence[Settlement],
        want: int = 0,
        *,
        owner: str = "",
        wanted: JobSelector = ALL,
    ) -> SettledAndClaimed:
        """By a worker that lives, or (without a place) in the name of any owner."""
        claims = self.desk.claims
        if place is not None:
            claims, owner, wanted = place.claims, place.incarnation, place.wanted
        done = claims.settle_and_claim(owner, ends, wanted, want, LOCK, self.now)
        self.expect_new_rows()
        name = None if place is None else place.name
        known = done._replace(doubtful=False)  # it is about sessions, of which the model has none
        assert known == self.table.settle_and_claim(owner, ends, wanted, want, LOCK, self.now, name)
        for claim in done.claims:
            # A token is given out once: whoever holds a later claim cannot be taken for this one.
            assert claim.token > self.tokens.get(claim.job_id, 0)
            self.tokens[claim.job_id] = claim.token
            self.granted.append((owner, claim))
        return done

    def foreign(self, sql: str, ids: Sequence[int], status: Status, *parameters: object, attempts: int = 0) -> None:
        """A foreign statement that gives these rows a status, adds to their attempts, and returns their ids."""
        clashing = [job_id for job_id in ids if self._clashes(self.table.rows[job_id], status)]
        try:
            changed = [row[0] for row in self.program.run(sql, parameters)]
        except UniqueBroken:
            assert clashing
            return
        assert not clashing
        for job_id in ids:
            before = self.table.rows[job_id]
            after = rows.foreign_move(before, status, time.time(), FOREIGN_LOCK_TIME)
            # Ignored where nothing moved, and then not among those changed either.
            assert (job_id in changed) == (after != before or before.status is status)
            if after != before:
                self.table.put(after._replace(attempts=after.attempts + attempts))
                self.meddled.add(job_id)
                self.take_times_of(job_id)

    def _clashes(self, row: Row, status: Status) -> bool:
        """Whether another unfinished job has its unique key."""
        if row.status in UNFINISHED or status not in UNFINISHED:
            return False
        return self.table.unfinished_twin(row.type, row.unique_key) is not None

    # What must hold

    def stored(self) -> dict[int, Row]:
        listed = self.desk.operations.jobs.latest(status=None, type=None, before=None, limit=10_000)
        return {job.id: row_of(job) for job in listed}

    def expect_new_rows(self) -> None:
        """The ids that the engine has just given out, for the table to use in the same order."""
        assert self.table.ids == []
        self.table.ids = sorted(self.stored().keys() - self.table.rows.keys())

    def take_times_of(self, job_id: int, within: float = 60.0) -> None:
        """Believe the store's own clock, or its dice, if it is about right."""
        row, stored = self.table.rows.get(job_id), self.stored().get(job_id)
        if row is None or stored is None:
            return
        for name in _TIMES:
            ours, theirs = getattr(row, name), getattr(stored, name)
            if ours is not None and theirs is not None and abs(ours - theirs) <= within:
                row = row._replace(**{name: theirs})
        self.table.put(row)

    def check(self) -> None:
        stored = self.stored()
        assert self.table.ids == []
        assert stored == self.table.rows
        assert len(set(self.table.ended)) == len(self.table.ended), "two ends of one claim"
        keys = [(row.type, row.unique_key) for row in stored.values() if row.unique_key and row.status in UNFINISHED]
        assert len(set(keys)) == len(keys), "a unique key twice among unfinished jobs"
        for row in stored.values():
            assert row.claim_token >= self.tokens.get(row.id, 0), "a token went back"
            self.tokens[row.id] = row.claim_token
            if row.status is Status.RUNNING:
                assert row.locked_by or row.id in self.meddled
            else:
                assert (row.locked_by, row.locked_at, row.lock_expires_at) == (None, None, None)
            if row.status is Status.PENDING and row.id not in self.meddled:
                assert row.attempts < POLICY.attempts_for(row.max_attempts), "waits with its attempts used up"
                assert row.crashes < 3, "waits with its crashes used up"

    def check_errors(self) -> None:
        for job_id in self.table.rows:
            stored = [(e.attempt, e.kind, e.message, e.worker) for e in self.desk.operations.jobs.attempts(job_id)]
            assert stored == self.table.errors.get(job_id, [])


_RECOVER = {"a": "pending", "b": "failed"}
