"""The folder for the files of requests: what counts towards its limit, and when it cannot be used."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.system.spool import Label, Spool, Spooled, SpoolFull

KiB = 1024
MiB = KiB * KiB
LABEL = Label("sqlite:////srv/ä.db", "App/Tag:1", 'run:"k"')
ONE, TWO = "1" * 32, "2" * 32
BODY = f"{ONE}-{'c' * 64}"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", MiB, MiB)


def test_the_files_of_one_token_belong_together_and_other_names_are_nobodys_business(spool: Spool) -> None:
    spool.folder.mkdir()
    others = ["notes.txt", ".part", ONE, f"{ONE}.parts", f"x{ONE}.part", f"{BODY}.gz"]
    for name in (BODY, f"{ONE}.label", f"{TWO}.part", *others):
        (spool.folder / name).touch()

    first, second = spool.unchanged(0.0)

    assert (first, second) == ((ONE, BODY), (TWO, ""))
    assert spool.unchanged(60.0) == []
    spool.remove(first)
    spool.remove(second)
    assert sorted(one.name for one in spool.folder.iterdir()) == sorted(others)


def test_a_label_comes_back_as_it_was_written(spool: Spool) -> None:
    upload = spool.begin(None)
    upload.finish(LABEL)

    (found,) = spool.unchanged(0.0)
    assert spool.label(found) == LABEL


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"type": "tag"}', b"\xff", b"[" * 100_000])
def test_what_is_no_label_is_none(spool: Spool, text: bytes) -> None:
    spool.folder.mkdir()
    (spool.folder / f"{ONE}.label").write_bytes(text)

    assert spool.label(Spooled(ONE)) is None


def on_disk(spool: Spool) -> int:
    """What its files take, in bytes."""
    return sum(one.stat().st_blocks * 512 for one in spool.folder.iterdir())


def fill(spool: Spool, body: bytes) -> int:
    """Store files until there is no room; returns how many were stored."""
    for stored in range(10_000):
        try:
            upload = spool.begin(len(body))
            upload.write(body)
            upload.finish(LABEL)
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
        upload.finish(LABEL)
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
