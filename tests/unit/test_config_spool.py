"""`[spool]`: whether its folder can be used."""

from __future__ import annotations

import os
from collections.abc import Callable
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


def shared(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


def foreign(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.exists, None),  # it can be made
        (lambda folder: folder.mkdir(mode=0o700), None),
        (shared, "other users may use it; chmod 700 {folder}"),
        (lambda folder: folder.symlink_to(folder.parent), "it is not a folder"),
        pytest.param(
            foreign,
            "it belongs to user 12345, not to user 0 of the service",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others"),
        ),
    ],
)
def test_only_a_private_folder_is_right(tmp_path: Path, make: Callable[[Path], object], said: str | None) -> None:
    folder = tmp_path / "files"
    make(folder)
    problem = [] if said is None else [f":5: spool.folder: {folder}: {said.format(folder=folder)}"]
    assert checked(tmp_path, f'{POOL}[spool]\nfolder = "files"\n') == problem


def test_one_that_cannot_be_made_is_wrong(tmp_path: Path) -> None:
    found = checked(tmp_path, f'{POOL}[spool]\nfolder = "nowhere/files"\n')
    assert found == [f":5: spool.folder: {tmp_path}/nowhere/files: it cannot be made in {tmp_path}/nowhere"]


def test_the_default_one_is_looked_at_too(tmp_path: Path) -> None:
    assert checked(tmp_path, POOL) == []
    (tmp_path / "jobs.db-supervisor").mkdir()
    folder = tmp_path / "jobs.db-supervisor" / "spool"
    folder.write_text("")
    assert checked(tmp_path, POOL) == [f": spool.folder: {folder}: it is not a folder"]
