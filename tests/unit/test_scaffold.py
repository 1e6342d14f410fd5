"""The starter that `supervisor init` writes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from supervisor.cli.setup import write_starter
from supervisor.config import load
from supervisor.config.settings import AdminSettings
from supervisor.domain.errors import ConfigError, Conflict


def test_the_starter_is_a_configuration_that_loads_and_a_module_with_its_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "project"  # which is created
    written, _ = write_starter(folder)

    assert sorted(folder.iterdir()) == written == [folder / "jobs.py", folder / "supervisor.toml"]
    settings = load(folder / "supervisor.toml")
    assert settings.database == f"sqlite:///{folder}/app.db"
    assert list(settings.pools) == ["default"]
    assert settings.pools["default"].types == ("greet",)


def test_the_starter_s_task_runs_and_refuses_what_cannot_succeed(tmp_path: Path) -> None:
    write_starter(tmp_path)

    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from supervisor import Fail
from supervisor.testing import context
from jobs import greet
assert greet(context(), "Ada") == {{"greeting": "Hello, Ada!"}}
assert greet.payload("Ada") == {{"name": "Ada"}}
try:
    greet(context(), "")
except Fail:
    sys.exit(7)
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], timeout=60)
    assert ran.returncode == 7


def test_every_commented_key_of_the_starter_shows_its_default(tmp_path: Path) -> None:
    write_starter(tmp_path)
    path = tmp_path / "supervisor.toml"
    plain = load(path)
    text = path.read_text()
    # The one default that is "none" cannot be shown; the starter says so beside its example.
    uncommented = re.sub(r"^# (?!max_memory)(?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)
    path.write_text(uncommented)

    assert tomllib.loads(uncommented).keys() == {"database", "pools", "defaults", "retention", "admin", "log"}
    assert len(tomllib.loads(uncommented)["pools"]["default"]) == 7
    assert plain.admin is None  # an empty table would ask for it
    default = AdminSettings("127.0.0.1:8787", None, None, (), show_payloads=False, allow_remote=False)
    assert load(path) == plain._replace(admin=default)


@pytest.mark.parametrize(
    ("variant", "name"),
    [("plain", "supervisor.toml"), ("plain", "jobs.py"), ("fastapi", "app.py"), ("ml", "coffee.jpg")],
)
@pytest.mark.parametrize("dangling", [False, True])
def test_an_existing_file_or_link_is_left_as_it_is_and_nothing_is_written_beside_it(
    tmp_path: Path, variant: str, name: str, dangling: bool
) -> None:
    if dangling:
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / name).write_text("mine")
    with pytest.raises(Conflict, match=f"{name} already exists"):
        write_starter(tmp_path, variant)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert dangling or (tmp_path / name).read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_readable_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError) as caught:
        write_starter(tmp_path / "file")

    assert caught.value.problems == [f"{tmp_path}/file: the starter files cannot be written: File exists"]
