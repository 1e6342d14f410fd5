"""The folder for the files of requests: what counts towards its limit, and when it cannot be used."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.system.spool import Spool, SpoolFull

KiB = 1024
MiB = KiB * KiB


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", MiB, MiB)


def on_disk(spool: Spool) -> int:
    """What its files take, in bytes."""
    return sum(one.stat().st_blocks * 512 for one in spool.folder.iterdir())


def fill(spool: Spool, body: bytes) -> int:
    """Store files until there is no room; returns how many were stored."""
    for stored in range(10_000):
        try:
            upload = spool.begin(len(body))
            upload.write(body)
            upload.finish(b"{}")
        except SpoolFull:
            return stored
    raise AssertionError("it is never full")


@pytest.mark.parametrize(("size", "blocks"), [(1, 1), (4 * KiB, 1), (4 * KiB + 1, 2)])
def test_whole_blocks_count_and_so_do_labels_however_fast_the_files_come(spool: Spool, size: int, blocks: int) -> None:
    assert fill(spool, b"x" * size) == MiB // ((blocks + 1) * 4 * KiB)
    assert on_disk(spool) <= MiB


def test_a_file_that_is_discarded_has_taken_nothing(spool: Spool) -> None:
    for _ in range(3):
        upload = spool.begin(None)
        upload.write(b"x" * 1000 * KiB)
        upload.discard()
    assert fill(spool, b"x" * 1000 * KiB) == 1


def test_a_folder_that_is_replaced_while_a_file_is_written_is_an_error(spool: Spool) -> None:
    upload = spool.begin(None)
    upload.write(b"x")
    spool.folder.rename(spool.folder.with_name("old"))
    spool.folder.mkdir(mode=0o700)
    with pytest.raises(FileNotFoundError):
        upload.finish(b"{}")
    assert [*spool.folder.iterdir()] == []


@pytest.fixture
def largest_file() -> Iterator[int]:
    """As a limit of the process or the file system sets it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * KiB, before[1]))
    yield 512 * KiB
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_is_larger_than_the_system_takes_finds_no_room(spool: Spool, largest_file: int) -> None:
    upload = spool.begin(None)
    with pytest.raises(SpoolFull, match="the disk of the spool has no room"):
        upload.write(b"x" * (largest_file + 1))
    assert [*spool.folder.iterdir()] == []
