"""Every interleaving of the protocol of claims, locks and tokens, as far as the model's world goes.

What holds: at most one outcome of a job is recorded, and only by its current claim; whoever has lost a claim
holds no token of the job's; a death is charged at most once, and only to what had begun; a worker that lives
and renews loses no claim by jumps of the clock, a blocked database or a frozen machine; every claim of the
dead is somebody's to give back; no job waits with its chances used up; and from every state an end can be
reached. A search says how many states it has seen, and gives the shortest way to what must not be.

In the world are two supervisors with a worker each, a reclaimer, and recovery by whoever works. Kept out:
a machine that is frozen more than once while a lock is watched; and a clock that is set forward, back and
forward again between the looks of a reclaimer. That may take a living worker's claim, whose lock was not
renewed while it did not look expired. The job then runs twice; one outcome is recorded all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.domain.job import Status
from supervisor.engine import open_engine
from supervisor.store.base import JobSelector
from tests.model import moves
from tests.model.guards import Guards
from tests.model.histories import EXAMPLES, PATIENCE
from tests.model.programs import PROGRAMS
from tests.model.protocol import Protocol
from tests.model.rows import Row, row_of
from tests.model.search import Found, Search
from tests.samples import sampled
from tests.store.kit import ENGINES, Desk

# One supervisor's worker and a reclaimer, in real time.
LOCKS = {"letters": "A", "hand": 1, "chances": 1, "kills": False}
# Anybody as slow as they like.
CLAIMS = {"timing": False, "stops": False, "kills": False}
DEATHS = {"timing": False, "stops": False, "clock": False}

QUICK = {
    "one worker with stale claims in its hand": (CLAIMS | {"letters": "A"}, None),
    "two workers and a reclaimer": (CLAIMS | {"hand": 1}, None),
    "deaths of two workers and supervisors": (DEATHS | {"hand": 1, "chances": 1, "unsure": False}, None),
    "deaths with several claims in hand": (DEATHS | {"letters": "A", "jobs": 2, "chances": 1, "unsure": False}, None),
    "a clock that jumps, a blocked database": (LOCKS | {"stops": False, "unsure": False}, None),
    "a clock that jumps, stopped processes": (LOCKS | {"blocks": False, "unsure": False}, None),
    "everything, as far as it goes": ({"jobs": 2}, 20_000),
}
SLOW = ("two workers", "a clock", "deaths of two")  # of these; in make long
LONG = {
    "two workers, each death and its settlement unheard": (DEATHS | {"hand": 1}, None),
    "deaths and a reclaimer": (DEATHS | {"clock": True, "letters": "A"}, None),
    "deaths with several claims in hand, unheard": (DEATHS | {"letters": "A", "jobs": 2}, None),
    "deaths of two with several claims in hand": (DEATHS | {"jobs": 2, "chances": 1}, 400_000),
    "clock, database, stopped processes": (LOCKS | {"chances": 2}, None),
    "one supervisor, everything": (LOCKS | {"kills": True, "unsure": False}, 500_000),
    "everything, far": ({"jobs": 2}, 100 * EXAMPLES),
}


def search(world: dict[str, object], most: int | None = None, **guards: object) -> Found:
    found = Search(Protocol(Guards(**guards), **world), most or 10**9).run()  # type: ignore[arg-type]
    logging.getLogger(__name__).info("%s", found)
    return found


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.long if name.startswith(SLOW) else ()) for name in QUICK),
        *(LONG if EXAMPLES else []),
    ],
)
def test_nothing_that_must_not_happen_can_be_reached(name: str) -> None:
    world, most = (QUICK | LONG)[name]
    found = search(world, most)

    assert not found.violation, str(found)
    assert found.lost == 0, f"no end can be reached from {found.lost} states"
    assert found.complete or most is not None


BROKEN = {
    "a settlement that does not name its token": (CLAIMS | {"letters": "A"}, {"settle_matches_token": False}),
    "a settlement of whatever has that token, by an owner that stays": (
        CLAIMS | {"letters": "A"},
        {"settle_matches_running": False, "settle_clears_owner": False},
    ),
    "a reclaim that leaves the token": (CLAIMS | {"letters": "A"}, {"put_back_raises_token": False}),
    "a reclaim by age alone": (LOCKS, {"reclaimer_is_patient": False}),
    "a reclaimer with half the patience": (LOCKS, {"patience": 0.5}),
    "a reclaimer that does not try to write": (
        LOCKS | {"stops": False, "unsure": False},
        {"reclaimer_tries_to_write": False},
    ),
    "a reclaimer that counts the time in which it did not look": (LOCKS, {"late_looks_prove_little": False}),
    "a reclaim of a lock that was renewed since": (
        LOCKS | {"stops": False, "unsure": False},
        {"reclaim_matches_expiry": False},
    ),
    "a reclaim of another claim": (LOCKS | {"stops": False, "unsure": False}, {"reclaim_matches_token": False}),
    "a charge to claims that had not begun": (DEATHS, {"only_what_began_is_charged": False}),
    "a charge to whatever claim is held": (
        DEATHS | {"clock": True, "letters": "A"},
        {"charge_names_its_claim": False},
    ),
    "a recovery that does not look again": (DEATHS, {"recovery_looks_again": False}),
}


@pytest.mark.parametrize("name", sampled(BROKEN, quick=5))
def test_a_broken_guard_is_found(name: str) -> None:
    world, guards = BROKEN[name]
    found = search(world, **guards)

    assert found.violation
    assert len(found.trace) <= 20


@pytest.mark.long
@pytest.mark.parametrize(
    "guard", ["settle_matches_owner", "settle_matches_running", "settle_clears_owner", "claim_raises_token"]
)
def test_behind_some_guards_stands_another(guard: str) -> None:
    """The token names its claim; while it does, owner and status say nothing more. One raise of it suffices."""
    found = search(CLAIMS | {"letters": "A"}, **{guard: False})

    assert found.complete
    assert not found.violation


@pytest.mark.parametrize("engine", ENGINES)
def test_the_store_answers_each_settlement_that_the_search_tried_as_the_model_does(
    engine: str, tmp_path: Path, fresh_url: Callable[[str, Path], str]
) -> None:
    """Current and lost claims, of the living, the dead and the buried, in every state of the row."""
    search(CLAIMS | {"letters": "A"})
    search(DEATHS | {"hand": 1}, 5_000)
    opened = open_engine(fresh_url(engine, tmp_path))
    desk, program = Desk.at(opened), PROGRAMS[engine](opened.url)
    insert = f"INSERT INTO jobs ({', '.join(Row._fields)}) VALUES ({', '.join('?' * len(Row._fields))}) RETURNING id"

    for (row, owner, end), after in moves.SETTLED.items():
        program.run(insert, row._replace(payload="null"))
        lost = desk.claims.settle_and_claim(owner, [end], JobSelector(()), 0, 0.0, 0.0).lost
        assert lost == ([] if after else [row.id])
        assert row_of(desk.job(row.id)) == (after or row)
        program.run("DELETE FROM jobs")

    ends = {(row.status, end.status, after is None) for (row, _, end), after in moves.SETTLED.items()}
    assert {Status.PENDING, Status.RUNNING, Status.DONE, Status.FAILED} <= {before for before, _, _ in ends}
    assert {Status.PENDING, Status.DONE, Status.FAILED, Status.QUARANTINED} <= {
        end for _, end, lost in ends if not lost
    }
    logging.getLogger(__name__).info("%d settlements", len(moves.SETTLED))
    program.close()
    desk.close()
