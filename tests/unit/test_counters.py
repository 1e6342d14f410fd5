"""What was finished is counted in a file that outlives whoever counts: nothing is lost, nothing counts twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.system.counters import BOUNDS, BUCKETS, MOST_TYPES, OTHERS, Row, TypeCounters, read, shared
from tests.stopwatch import Stopwatch

SECONDS = st.lists(st.floats(0, 4000) | st.sampled_from(BOUNDS), min_size=1, max_size=50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tallies"


def total(path: Path) -> TypeCounters:
    """Of all types."""
    found = TypeCounters()
    for counters in read(path).types.values():
        found.add(counters)
    return found


def test_what_is_counted_can_be_read(path: Path) -> None:
    row = shared(path, 1)
    row.ran("tag", 0.003, 0.2)
    row.ran("tag", 2.0, None, failed=True)
    row.ran("mail", None, None, failed=True)
    row.busy()
    row.reclaimed(3)

    found = read(path)

    assert set(found.types) == {"tag", "mail"}
    tag = found.types["tag"]
    assert (tag.done, tag.failed, tag.run_seconds, tag.wait_seconds) == (1, 1, pytest.approx(2.003), 0.2)
    assert {bound: count for bound, count in zip(BOUNDS, tag.run, strict=False) if count} == {0.005: 1, 2.5: 1}
    assert {bound: count for bound, count in zip(BOUNDS, tag.wait, strict=False) if count} == {0.25: 1}
    assert (found.types["mail"].failed, sum(found.types["mail"].run)) == (1, 0)
    assert (found.store_busy, found.locks_reclaimed) == (1, 3)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_bucket_holds_what_is_as_long_as_its_bound_and_the_last_one_all_that_is_longer(path: Path) -> None:
    row = shared(path, 1)
    for seconds in (*BOUNDS, 0.0, 1800.001, 1e9):
        row.ran("tag", seconds, None)

    assert read(path).types["tag"].run == [2] + [1] * (BUCKETS - 2) + [2]


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=5))
def test_many_at_once_count_as_each_on_its_own(hands: list[tuple[list[float], list[float]]]) -> None:
    single, together = Row(), Row()
    for runs, waits in hands:
        count = min(len(runs), len(waits))
        runs, waits = sorted(runs[:count]), sorted(waits[:count])
        together.ran_all("tag", runs, waits)
        for run, wait in zip(runs, waits, strict=True):
            single.ran("tag", run, wait)

    def numbers(row: Row) -> list[float]:
        return [*row._ints.tolist()[: 13 + 64], *row._ints.tolist()[64 + 17 : 64 + 64]]

    assert numbers(single) == numbers(together)


def test_a_successor_in_the_slot_goes_on_counting(path: Path) -> None:
    shared(path, 3).ran("tag", 1.0, 1.0)
    successor = shared(path, 3)
    successor.ran("mail", 1.0, 1.0)
    successor.ran("tag", 1.0, 1.0)
    shared(path, 7).ran("tag", 1.0, 1.0)

    found = read(path).types

    assert {name: counters.done for name, counters in found.items()} == {"tag": 3, "mail": 1}


def test_types_beyond_the_bound_are_counted_together_and_none_is_lost(path: Path) -> None:
    for _ in range(2):  # the second finds the row full
        row = shared(path, 1)
        for number in range(MOST_TYPES + 5):
            row.ran(f"type-{number:03}", 0.5, 0.5)

    found = read(path).types

    assert len(found) == MOST_TYPES + 1
    assert found[OTHERS].done == 10
    assert total(path).done == 2 * (MOST_TYPES + 5)
    assert found["type-000"].done == 2


COUNTING = """
import os, sys
from pathlib import Path
from supervisor.system.counters import shared

row = shared(Path(sys.argv[1]), int(sys.argv[2]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    row.ran(f"type-{number % 70}", 0.25, 0.125, failed=number % 2 == 1)
os.kill(os.getpid(), 9)
"""


def test_whoever_reads_beside_writers_sees_numbers_that_only_grow_until_all_are_there(path: Path) -> None:
    runs = 20_000
    arguments = [[sys.executable, "-c", COUNTING, str(path), str(slot), str(runs)] for slot in (1, 2)]
    writers = [subprocess.Popen(a, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) for a in arguments]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    last = TypeCounters()
    while any(writer.poll() is None for writer in writers):
        found = total(path)
        assert last.done <= found.done
        assert last.failed <= found.failed
        assert last.run_seconds <= found.run_seconds
        assert abs(found.done + found.failed - sum(found.wait)) <= 140  # one a type and writer, at most
        last = found
    for writer in writers:
        assert writer.wait() == -9
        assert writer.stdout is not None
        writer.stdout.close()

    found = total(path)
    assert (found.done, found.failed) == (runs, runs)
    assert found.run_seconds == runs * 2 * 0.25
    assert sum(found.run) == sum(found.wait) == 2 * runs


def test_threads_of_one_process_lose_nothing(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for attempt in range(25):  # what can go wrong is a matter of luck
            path = tmp_path / f"tallies-{attempt}"
            row, together = shared(path, 1), threading.Barrier(4)

            def count(row: Row = row, together: threading.Barrier = together) -> None:
                together.wait()
                for number in range(40):
                    row.ran(f"type-{number}", 0.5, 0.5)

            with ThreadPoolExecutor(4) as threads:
                for counting in [threads.submit(count) for _ in range(4)]:
                    counting.result()
            assert total(path).done == 4 * 40
    finally:
        sys.setswitchinterval(interval)


def test_a_long_or_odd_type_is_still_counted(path: Path) -> None:
    row = shared(path, 1)
    row.ran("ä" * 90, 0.5, 0.5)
    row.ran("t" * 100, 0.5, 0.5)

    assert read(path).types["t" * 100].done == 1
    assert total(path).done == 2


def test_without_room_for_the_file_a_worker_counts_for_itself(tmp_path: Path) -> None:
    row = shared(tmp_path / "nowhere" / "tallies", 1)
    row.ran("tag", 0.5, 0.5)

    assert read(tmp_path / "nowhere" / "tallies").types == {}


@pytest.mark.fault(69)
@pytest.mark.parametrize("written", [1 << 62, -1])
def test_a_count_that_native_code_has_written_costs_a_successor_nothing(path: Path, written: int) -> None:
    shared(path, 1)._ints[0] = written
    watch = Stopwatch()
    row = shared(path, 1)
    row.ran("tag", 0.5, 0.5)

    assert watch.seconds() < 1
    assert total(path).done == 1
