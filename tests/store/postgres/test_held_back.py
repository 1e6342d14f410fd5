"""A transaction that stays open elsewhere on the server keeps every claimed row in the index of pending ones: claims
stay as cheap as without it, and pass over no job for longer than the time between two looks at everything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from supervisor.domain.job import Claim
from supervisor.domain.settlement import done, released
from supervisor.store.base import Claims, Engine, JobSelector
from supervisor.store.postgres import backlog
from tests.store.kit import LOCK, Desk, until
from tests.store.postgres.statistics import FLUSH, sessions

WANTED = JobSelector(("tag", "caption"), "cpu gpu")
INSERT = "INSERT INTO jobs (type, requires, priority, scheduled_at) VALUES (%s, %s, %s, %s) RETURNING id"


@dataclass
class Clock:
    """The monotonic clock by which looks at everything are due."""

    at: float = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(backlog, "time", clock)
    return clock


@pytest.fixture
def held(desk: Desk, engine: Engine) -> Iterator[psycopg.Connection]:
    """An idle transaction: rows that were deleted or changed after its start are not removed from indexes."""
    with psycopg.connect(engine.url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


def exchange(claims: Claims, finished: list[Claim], want: int, wanted: JobSelector = WANTED) -> list[Claim]:
    settled = [done(claim, None) for claim in finished]
    return claims.settle_and_claim("w1", settled, wanted, want, LOCK, time.time()).claims


def run(claims: Claims, rounds: int, want: int) -> None:
    finished: list[Claim] = []
    for _ in range(rounds):
        finished = exchange(claims, finished, want)
        assert len(finished) == want
    exchange(claims, finished, 0)


def buffers(foreign: psycopg.Connection) -> int:
    """Of the index of pending jobs."""
    row = foreign.execute(
        "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'jobs_pending'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def cost(engine: Engine, foreign: psycopg.Connection, rounds: int) -> int:
    """Buffers of the index that a session reads to claim one job a round, after two rounds to get used to it."""
    told = []
    for count in (2, 2 + rounds):
        before, others = buffers(foreign), sessions(foreign)
        claims = engine.claims()
        run(claims, count, 1)
        claims.close()
        until(lambda others=others: sessions(foreign) == others)  # type: ignore[misc]
        told.append(buffers(foreign) - before)
    return told[1] - told[0]


def test_claims_read_as_little_as_without_it(
    desk: Desk, engine: Engine, foreign: psycopg.Connection, held: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "SHORTEST", 60.0)  # the looks at everything are counted by another test
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, 8000)")
    foreign.execute(FLUSH)
    fresh, others = cost(engine, foreign, 20), sessions(foreign)
    many = engine.claims()
    run(many, 15, 500)
    many.close()
    until(lambda: sessions(foreign) == others)
    with_marks = cost(engine, foreign, 20)
    monkeypatch.setattr(backlog, "LONG", 10**9)
    without = cost(engine, foreign, 20)

    assert with_marks < 1.5 * fresh + 20
    assert without > 5 * with_marks  # the transaction really holds them


@pytest.mark.parametrize(
    "passed_over",
    [("tag", "", 0, 1000.0), ("tag", "", 9, 1000.0), ("caption", "gpu", 0, 1000.0), ("caption", "", -3, 1000.0)],
    ids=["older", "of another priority", "that requires something", "of another type"],
)
def test_a_job_that_the_marks_pass_over_waits_for_the_next_look_at_everything(
    passed_over: tuple[object, ...],
    desk: Desk,
    foreign: psycopg.Connection,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "LONG", -10_000)  # every look is long
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, 100)")
    for _ in range(3):
        exchange(desk.claims, [], 10)
    row = foreign.execute(INSERT, passed_over).fetchone()
    assert row is not None
    assert row[0] not in [claim.job_id for claim in exchange(desk.claims, [], 10)]
    clock.at += backlog.SHORTEST
    assert row[0] in [claim.job_id for claim in exchange(desk.claims, [], 100)]


@pytest.mark.parametrize("seed", range(8))
def test_after_a_look_at_everything_nothing_that_is_due_is_left(
    seed: int,
    desk: Desk,
    engine: Engine,
    foreign: psycopg.Connection,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "LONG", -10_000)
    dice = random.Random(seed)
    others = [desk.claims, engine.claims(), engine.claims()]
    inserted: set[int] = set()
    claimed: list[int] = []
    for _ in range(40):
        match dice.randrange(5):
            case 0 | 1:
                job = dice.choice(["tag", "caption"]), dice.choice(["", "cpu", "gpu"]), dice.choice([-1, 0, 0, 7])
                at = time.time() - dice.choice([0.0, 0.0, 0.5, 100.0])
                for _ in range(dice.choice([1, 1, 5])):
                    inserted.add(foreign.execute(INSERT, (*job, at)).fetchone()[0])  # type: ignore[index]
            case 2 | 3:
                found = exchange(dice.choice(others), [], dice.choice([1, 2, 8]))
                back = [claim for claim in found if dice.random() < 0.2]
                claimed += [claim.job_id for claim in found if claim not in back]
                dice.choice(others).settle_and_claim(
                    "w1", [released(claim) for claim in back], WANTED, 0, LOCK, time.time()
                )
            case 4:
                clock.at += dice.choice([0.1, backlog.SHORTEST])
    clock.at += backlog.SHORTEST
    claimed += [claim.job_id for claim in exchange(dice.choice(others), [], 1000)]

    assert sorted(claimed) == sorted(inserted)
    for other in others[1:]:
        other.close()


@pytest.mark.parametrize("seed", range(4))
def test_the_marks_of_a_pool_with_a_lowest_priority_are_its_own(
    seed: int, desk: Desk, engine: Engine, foreign: psycopg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LONG", -10_000)
    dice, urgent = random.Random(seed), WANTED._replace(min_priority=10)
    waiting: dict[int, int] = {}
    other = engine.claims()
    for _ in range(40):
        priority = dice.choice([0, 0, 9, 10, 20])
        row = foreign.execute(INSERT, ("tag", dice.choice(["", "cpu"]), priority, time.time())).fetchone()
        assert row is not None
        waiting[row[0]] = priority
        wanted, claims = dice.choice([WANTED, urgent]), dice.choice([desk.claims, other])
        for claim in exchange(claims, [], dice.choice([1, 2]), wanted):
            assert waiting.pop(claim.job_id) >= (wanted.min_priority or 0)
        clock.at += dice.choice([0.0, backlog.SHORTEST])
    clock.at += backlog.SHORTEST
    left = {claim.job_id for claim in exchange(other, [], 1000, urgent)}
    assert left == {job for job, priority in waiting.items() if priority >= 10}
    assert desk.maintenance.backlog.depth(urgent, time.time(), 100).due == 0
    other.close()


def test_a_long_look_of_a_pool_with_a_lowest_priority_makes_marks(
    desk: Desk, foreign: psycopg.Connection, held: psycopg.Connection, clock: Clock
) -> None:
    urgent = WANTED._replace(min_priority=10)
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, %s)", (backlog.LONG + 1100,))
    run(desk.claims, 1, backlog.LONG + 500)
    assert exchange(desk.claims, [], 1, urgent) == []
    assert exchange(desk.claims, [], 1, urgent) == []
    old, new = (foreign.execute(INSERT, ("tag", "", 10, at)).fetchone() for at in (1000.0, time.time()))
    assert [claim.job_id for claim in exchange(desk.claims, [], 9, urgent)] == [*(new or ())]
    clock.at += backlog.LONGEST
    assert [claim.job_id for claim in exchange(desk.claims, [], 9, urgent)] == [*(old or ())]


def test_a_job_given_back_is_found_at_once(
    desk: Desk, foreign: psycopg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LONG", -10_000)
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, 10)")
    exchange(desk.claims, [], 1)
    first, *_ = exchange(desk.claims, [], 9)
    desk.claims.settle_and_claim("w1", [released(first)], WANTED, 0, LOCK, time.time())
    assert [claim.job_id for claim in exchange(desk.claims, [], 1)] == [first.job_id]


def test_without_the_transaction_the_marks_are_given_up(
    desk: Desk, foreign: psycopg.Connection, held: psycopg.Connection, clock: Clock
) -> None:
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, %s)", (backlog.LONG + 1100,))
    run(desk.claims, 1, backlog.LONG + 500)
    run(desk.claims, 2, 10)
    old = foreign.execute(INSERT, ("tag", "", 0, 1000.0)).fetchone()
    assert [claim.job_id for claim in exchange(desk.claims, [], 1)] != [*(old or ())]
    held.rollback()
    foreign.execute("VACUUM jobs")
    clock.at += backlog.LONGEST
    assert [claim.job_id for claim in exchange(desk.claims, [], 1)] == [*(old or ())]
    older = foreign.execute(INSERT, ("tag", "", 0, 999.0)).fetchone()
    assert [claim.job_id for claim in exchange(desk.claims, [], 1)] == [*(older or ())]


def test_the_maintainer_counts_from_the_marks_and_names_the_time_of_the_next_look(
    desk: Desk, foreign: psycopg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "LONG", -10_000)
    waiting, now = desk.maintenance.backlog, time.time()
    foreign.execute("INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, 10)")
    foreign.execute("INSERT INTO jobs (type, scheduled_at) VALUES ('tag', %s)", (now + 300.0,))
    assert waiting.depth(WANTED, time.time(), 100).due == 10
    exchange(desk.claims, [], 4)
    assert waiting.depth(WANTED, time.time(), 100).due == 6  # from now on there are marks
    foreign.execute(INSERT, ("tag", "", 5, 1000.0))
    counted = waiting.depth(WANTED, now + 1.0, 100)
    assert counted.due == 6
    assert counted.next_due == pytest.approx(now + 1.0 + backlog.SHORTEST)
    assert not waiting.any_due(WANTED, now + 1.0)  # what it would find is not what workers find
    clock.at += backlog.SHORTEST
    assert waiting.depth(WANTED, now + 1.0, 100).due == 7
    exchange(desk.claims, [], 7)
    foreign.execute(INSERT, ("tag", "", -5, 1000.0))
    assert waiting.unfinished(WANTED, now + 1.0, 10.0)
