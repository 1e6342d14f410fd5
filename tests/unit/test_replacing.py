"""A file that is replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.system.files import replace


def test_a_file_is_replaced_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    replace(file, "ä")
    assert file.read_text(encoding="utf-8") == "ä"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        replace(folder, "text")
    assert list(tmp_path.iterdir()) == [folder]


def test_nothing_is_written_through_a_link_in_the_draft_s_place(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("theirs")
    (tmp_path / f"file.{os.getpid()}").symlink_to(foreign)
    with pytest.raises(OSError, match="symbolic links"):
        replace(tmp_path / "file", "text")
    assert foreign.read_text() == "theirs"
