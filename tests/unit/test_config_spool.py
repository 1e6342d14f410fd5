"""`[spool]`: whether its folder can be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.domain.errors import ConfigError
from supervisor.engine import open_engine
from supervisor.ops.admin_files import upload_folder
from supervisor.ops.doctor.configuration import check_configuration

POOL = '[pools.tag]\ncommand = ["true"]\n[admin]\n'


def loaded(folder: Path, text: str) -> Settings:
    (folder / "supervisor.toml").write_text(text)
    return load(folder / "supervisor.toml")


def checked(folder: Path, text: str) -> list[str]:
    (folder / "supervisor.toml").write_text(text)
    try:
        check_configuration(folder / "supervisor.toml", None)
    except ConfigError as error:
        return [problem.partition("supervisor.toml")[2] for problem in error.problems]
    return []


def test_the_folder_is_next_to_a_file_and_must_be_named_for_a_server(tmp_path: Path) -> None:
    def folder(text: str) -> Path | None:
        settings = loaded(tmp_path, text + POOL)
        return upload_folder(settings, open_engine(settings.database))

    server = 'database = "postgresql://jobs@localhost/jobs"\n'
    assert folder("") == tmp_path / "jobs.db-supervisor" / "spool"
    assert folder(server) is None
    assert folder(server + '[spool]\nfolder = "/mnt/files"\n') == Path("/mnt/files")


class TestCheck:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "files"

    def asked(self, tmp_path: Path, name: str = "files") -> list[str]:
        return checked(tmp_path, f'{POOL}[spool]\nfolder = "{name}"\n')

    def test_a_folder_that_can_be_made_is_fine(self, tmp_path: Path) -> None:
        assert self.asked(tmp_path) == []
        assert checked(tmp_path, POOL) == []

    def test_so_is_a_private_one(self, tmp_path: Path, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        assert self.asked(tmp_path) == []

    def test_one_that_others_may_use_is_not(self, tmp_path: Path, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o750)
        assert self.asked(tmp_path) == [f":5: spool.folder: {folder}: other users may use it; chmod 700 {folder}"]

    def test_neither_is_a_file_or_a_link(self, tmp_path: Path, folder: Path) -> None:
        folder.symlink_to(tmp_path)
        assert self.asked(tmp_path) == [f":5: spool.folder: {folder}: it is not a folder"]

    def test_neither_is_one_that_cannot_be_made(self, tmp_path: Path) -> None:
        found = self.asked(tmp_path, "nowhere/files")
        assert found == [f":5: spool.folder: {tmp_path}/nowhere/files: it cannot be made in {tmp_path}/nowhere"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
    def test_neither_is_that_of_another_user(self, tmp_path: Path, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, -1)
        found = self.asked(tmp_path)
        assert found == [f":5: spool.folder: {folder}: it belongs to user 12345, not to user 0 of the service"]

    def test_the_default_one_is_looked_at_too(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db-supervisor").mkdir()
        folder = tmp_path / "jobs.db-supervisor" / "spool"
        folder.write_text("")
        assert checked(tmp_path, POOL) == [f": spool.folder: {folder}: it is not a folder"]
