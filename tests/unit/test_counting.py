"""What a settlement counts as, one by one and by whole hands."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.domain.history import LONGEST_WAIT, FinishedRun, finished_run, waiting_time
from supervisor.domain.job import Claim
from supervisor.domain.settlement import (
    Failure,
    RetryPolicy,
    Settlement,
    Usage,
    cancelled,
    crashed,
    done,
    failed,
    released,
    suspected,
)
from supervisor.system.counters import BOUNDS, Row, TypeCounters, read, shared
from supervisor.worker.recorder import QUICK, RunCounter

POLICY = RetryPolicy(max_attempts=3)
BEGAN = 1_800_000_000.0


def claim(number: int = 1, *, due: float = BEGAN - 5.0, type_: str = "tag") -> Claim:
    return Claim(number, 1, type_, "{}", 1, None, 0, due)


def quick(number: int, at: float, **fields: float | str) -> Settlement:
    return done(claim(number, **fields), None, started_at=at)  # type: ignore[arg-type]


TIMED = Usage(BEGAN, 2.0)
BROKEN = Failure("exception", "no", duration=0.5)
DEAD = Failure("crash", "dead", duration=3.0)


@pytest.mark.parametrize(
    ("settlement", "seconds", "expected"),
    [
        (quick(1, BEGAN), 0.25, FinishedRun("tag", False, 0.25, 5.0)),
        (done(claim(), None, started_at=BEGAN, usage=TIMED), 9, FinishedRun("tag", False, 2.0, 5.0)),
        (failed(claim(), BROKEN, POLICY, chance=0, started_at=BEGAN), 9, FinishedRun("tag", True, 0.5, 5.0)),
        (crashed(claim(), DEAD, POLICY, 3, chance=0), 3, FinishedRun("tag", True, 3.0, 5.0)),
        (crashed(claim(), Failure("expired", "?"), POLICY, 3, chance=0), 0, FinishedRun("tag", True, None, None)),
        # What was cancelled, or goes back uncharged, does not count.
        (cancelled(claim(), started_at=BEGAN), 1, None),
        (released(claim()), 1, None),
        (suspected(claim(), 4, usage=TIMED), 1, None),
    ],
)
def test_what_ends_well_or_fails_counts_with_the_seconds_that_are_known(
    settlement: Settlement, seconds: float, expected: FinishedRun | None
) -> None:
    assert finished_run(settlement, BEGAN + seconds) == expected


@pytest.mark.parametrize("due", [0.0, BEGAN + 3600.0, BEGAN - LONGEST_WAIT - 1])
def test_a_time_that_only_says_before_all_others_and_a_clock_that_jumped_are_no_wait(due: float) -> None:
    assert waiting_time(due, BEGAN) == 0.0


# Hands


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tallies"


def counted(path: Path, settlements: list[Settlement], until: float, *, lost: list[int] | None = None) -> TypeCounters:
    RunCounter(shared(path, 1)).settled(settlements, lost or [], until)
    return read(path).types.get("tag", TypeCounters())


def by_bound(counts: list[int]) -> dict[float, int]:
    return {bound: count for bound, count in zip((*BOUNDS, float("inf")), counts, strict=True) if count}


def test_of_a_hand_of_quick_jobs_each_lasts_until_the_next_begins(path: Path) -> None:
    starts = [BEGAN, BEGAN + 0.0005, BEGAN + 0.0025, BEGAN + 0.009, BEGAN + 0.0095]
    hand = [quick(number, at, due=BEGAN - number) for number, at in enumerate(starts)]

    counters = counted(path, hand, BEGAN + 0.0096)

    assert (counters.done, counters.failed) == (5, 0)
    assert counters.run_seconds == pytest.approx(0.0096, abs=1e-6)
    assert by_bound(counters.run) == {0.001: 3, 0.005: 1, 0.01: 1}
    assert counters.wait_seconds == pytest.approx(0 + 1 + 2 + 3 + 4 + sum(at - BEGAN for at in starts), abs=1e-5)
    assert by_bound(counters.wait) == {0.001: 1, 2.5: 2, 5.0: 2}


def test_a_mixed_hand_counts_as_its_jobs_do(path: Path) -> None:
    slow = done(claim(2), None, started_at=BEGAN + 0.001, usage=Usage(BEGAN + 0.001, 0.2))
    broken = failed(claim(3), Failure("exception", "no", duration=0.3), POLICY, chance=0, started_at=BEGAN + 0.201)
    hand = [quick(1, BEGAN), slow, broken, quick(4, BEGAN + 0.501), released(claim(5)), released(claim(6))]

    counters = counted(path, hand, BEGAN + 7.0)

    assert (counters.done, counters.failed) == (3, 1)
    # The last one was not timed, so it was short, however late it was settled.
    assert counters.run_seconds == pytest.approx(0.001 + 0.2 + 0.3 + 0.01, abs=1e-6)
    assert (sum(counters.run), sum(counters.wait)) == (4, 4)


def test_jobs_of_one_batch_ran_as_long_as_it_did(path: Path) -> None:
    first = [quick(number, BEGAN) for number in range(5)]
    second = [quick(number, BEGAN + 0.004) for number in range(5, 8)]

    counters = counted(path, [*first, *second], BEGAN + 0.006)

    assert counters.done == 8
    assert counters.run_seconds == pytest.approx(5 * 0.004 + 3 * 0.002, abs=1e-6)


def test_a_lost_claim_does_not_count(path: Path) -> None:
    hand = [quick(number, BEGAN + number / 1000) for number in range(6)]

    assert counted(path, hand, BEGAN + 0.006, lost=[2, 4]).done == 4


def test_a_clock_that_jumps_in_the_middle_spoils_no_sum(path: Path) -> None:
    hand = [quick(number, BEGAN + number / 1000) for number in range(4)]
    hand += [quick(number, BEGAN - 7200 + number / 1000) for number in range(4, 8)]

    counters = counted(path, hand, BEGAN - 7200 + 0.008)

    assert counters.done == 8
    assert counters.run_seconds < 0.1
    assert counters.wait_seconds < 8 * 5.01


def test_quick_jobs_claimed_one_at_a_time_are_counted_when_no_other_follows_or_many_have(path: Path) -> None:
    counter = RunCounter(shared(path, 1))

    def done_so_far() -> int:
        return read(path).types.get("tag", TypeCounters()).done

    for number in range(3 * QUICK):
        counter.settled([quick(number, BEGAN + number)], [], BEGAN + number + 0.002, more=True)
        assert number - QUICK <= done_so_far() <= number + 1
    counter.settled([quick(1000, BEGAN)], [], BEGAN + 0.002, more=False)
    assert done_so_far() == 3 * QUICK + 1

    counter.settled([quick(1001, BEGAN)], [], BEGAN + 0.002, more=True)
    counter.flush()
    assert done_so_far() == 3 * QUICK + 2
    broken = failed(claim(1002), Failure("exception", "no", duration=0.3), POLICY, chance=0, started_at=BEGAN)
    counter.settled([broken], [], BEGAN + 0.3, more=True)
    counters = read(path).types["tag"]
    assert (counters.done, counters.failed) == (3 * QUICK + 2, 1)
    assert sum(counters.run) == sum(counters.wait) == 3 * QUICK + 3
    assert by_bound(counters.run) == {0.005: 3 * QUICK + 2, 0.5: 1}


def test_a_pool_of_several_types_counts_each() -> None:
    row = Row()
    hand = [quick(number, BEGAN + number / 1000, type_=f"type-{number % 2}") for number in range(8)]
    RunCounter(row).settled(hand, [], BEGAN + 0.008)

    assert sorted(row._entries) == ["type-0", "type-1"]
