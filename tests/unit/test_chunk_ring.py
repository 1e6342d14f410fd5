"""The latest chunks of a worker are kept whole, in order, whoever dies and however fast they come."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.system.chunk_ring import REGION, RING_BYTES, ChunkReader, ChunkWriter, Record


@dataclass
class Run:
    job_id: int = 7
    token: int = 1
    attempt: int = 1
    emitted: int = 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scoreboard.chunks"


def records(path: Path, slot: int = 1, since: int = 0) -> tuple[list[Record], int]:
    reader = ChunkReader(path)
    try:
        return reader.read(slot, since) if slot in reader.slots() else ([], 0)
    finally:
        reader.close()


def read(path: Path, slot: int = 1, since: int = 0) -> tuple[list[bytes], int]:
    found, end = records(path, slot, since)
    return [record.data for record in found], end


def test_what_was_added_is_read_in_order_and_once(path: Path) -> None:
    writer, run = ChunkWriter(path, 1), Run()
    for data in (b'"one"', b'"two"'):
        writer.add(run, data)

    found, end = read(path)
    assert found == [b'"one"', b'"two"']
    assert read(path, since=end) == ([], end)
    writer.add(run, b"3")
    assert read(path, since=end)[0] == [b"3"]


def test_a_chunk_names_its_run_and_its_number(path: Path) -> None:
    writer, first, second = ChunkWriter(path, 2), Run(1, 5, 2), Run(2, 9, 1)
    for run in (first, second, first):
        writer.add(run, b"0")

    assert [tuple(record[:4]) for record in records(path, 2)[0]] == [(1, 5, 2, 1), (2, 9, 1, 1), (1, 5, 2, 2)]
    assert first.emitted == 2


def test_nothing_is_allocated_before_the_first_chunk_and_a_region_is_as_large_as_it_says(path: Path) -> None:
    writer = ChunkWriter(path, 3)
    assert not path.exists()
    writer.add(Run(), b"1")
    assert path.stat().st_size == 4 * REGION
    assert path.stat().st_blocks * 512 <= REGION + 8192
    assert path.stat().st_mode & 0o777 == 0o600


def test_nobody_reads_what_is_not_there(path: Path) -> None:
    assert read(path) == ([], 0)
    path.write_bytes(b"short")
    assert read(path, 0) == ([], 0)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 16_384), min_size=1, max_size=80), stride=st.integers(1, 9))
def test_the_latest_chunks_are_whole_whatever_their_sizes(
    sizes: list[int], stride: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ring") / "chunks"
    writer, run = ChunkWriter(path, 0), Run()
    reader, since = ChunkReader(path), 0
    for number, size in enumerate(sizes, 1):
        writer.add(run, bytes([number % 251]) * size)
        if number % stride == 0:
            reader.slots()
            found, since = reader.read(0, since)
            assert [record.number for record in found] == [*range(number - len(found) + 1, number + 1)]
    reader.close()
    left, _ = read(path, 0)
    kept = len(left)
    assert left == [bytes([number % 251]) * size for number, size in [*enumerate(sizes, 1)][-kept:]]
    if kept < len(sizes):
        assert sum(size + 32 for size in sizes[-kept - 1 :]) > RING_BYTES


def test_a_successor_goes_on_behind_the_chunks_of_its_predecessor(path: Path) -> None:
    ChunkWriter(path, 1).add(Run(), b'"before"')
    ChunkWriter(path, 1).add(Run(8), b'"after"')

    assert read(path)[0] == [b'"before"', b'"after"']


@pytest.mark.parametrize("damage", [b"\xff" * 16, b"\x00" * 16, b"\x01" + bytes(7) + b"\xff" * 8])
def test_words_that_no_worker_has_written_are_no_chunks_and_the_ring_works_again(path: Path, damage: bytes) -> None:
    ChunkWriter(path, 0).add(Run(), b"1")
    with path.open("r+b") as file:
        file.write(damage)

    assert read(path, 0)[0] == []
    ChunkWriter(path, 0).add(Run(), b"2")
    assert read(path, 0)[0] == [b"2"]


def test_a_ring_full_of_nonsense_neither_stops_its_writer_nor_its_reader(path: Path) -> None:
    writer, run = ChunkWriter(path, 0), Run()
    for _ in range(40):
        writer.add(run, b"x" * 9000)
    with path.open("r+b") as file:
        file.seek(64)
        file.write(b"\xee" * RING_BYTES)

    assert read(path, 0)[0] == []
    for number in range(100):
        writer.add(run, str(number).encode())
    assert read(path, 0)[0][-1] == b"99"


def test_threads_number_their_chunks_without_gaps(path: Path) -> None:
    writer, run = ChunkWriter(path, 0), Run()
    threads = [threading.Thread(target=lambda: [writer.add(run, b"1") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [record.number for record in records(path, 0)[0]] == [*range(1, 2001)]


WRITER = """
import sys
from pathlib import Path
from supervisor.system.chunk_ring import ChunkWriter
from tests.unit.test_chunk_ring import Run
writer, run = ChunkWriter(Path(sys.argv[1]), 0), Run()
print("go", flush=True)
while True:
    number = str(run.emitted + 1).encode()
    writer.add(run, number * (run.emitted % 50 + 1))
"""


@pytest.fixture
def writer(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_reader_beside_an_endless_writer_sees_whole_chunks_also_when_that_is_killed(
    path: Path, writer: subprocess.Popen[bytes]
) -> None:
    reader, since, seen, looks = ChunkReader(path), 0, 0, 0
    deadline = time.monotonic() + 20
    while looks < 200:
        assert time.monotonic() < deadline
        if looks == 190:
            writer.kill()
            writer.wait()
        if not reader.slots():
            time.sleep(0.01)
            continue
        found, since = reader.read(0, since)
        looks += bool(found) or looks >= 190  # while it lives, only those that have found something
        for record in found:
            assert record.number > seen
            assert record.data == str(record.number).encode() * ((record.number - 1) % 50 + 1)
            seen = record.number
    reader.close()


def test_without_room_chunks_are_lost_and_the_handler_goes_on(tmp_path: Path) -> None:
    writer, run = ChunkWriter(tmp_path / "nowhere" / "chunks", 0), Run()
    writer.add(run, b"1")
    writer.add(run, b"2")
    assert run.emitted == 2
