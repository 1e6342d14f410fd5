"""examples/pictures/demo.py: what it takes, what it shows, how it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor import Queue
from tests.cli.test_init import commands, output_of
from tests.handlers.environments import with_everything, without

PROGRAM = Path(__file__).parents[2] / "examples" / "pictures" / "demo.py"
HOSTS = PROGRAM.with_name("several_hosts.py")

OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in ("warm.toml", "batches.toml")]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures_demo", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_files_named_like_pictures_are_taken_in_order(demo: ModuleType, tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpeg", "C.TifF", "notes.txt", "png"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.gif").symlink_to("nowhere")
    names = [path.name for path in demo.own_pictures(str(tmp_path))]
    assert names == ["a.jpeg", "b.PNG", "C.TifF", "dangling.gif"]


@pytest.mark.parametrize("name", sorted(path.name for path in PROGRAM.parent.glob("*.toml")))
def test_a_configuration_has_a_pool_for_every_type(demo: ModuleType, name: str) -> None:
    pools = tomllib.loads(PROGRAM.with_name(name).read_text())["pools"]
    types = [type for pool, keys in pools.items() for type in keys.get("types", [pool])]
    assert sorted(types) == sorted(demo.TYPES)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(ml: None, tmp_path: Path) -> Run:
    if not Path(sys.executable).with_name("supervisor").exists():
        pytest.skip("job-supervisor is not installed in this environment")

    def call(*arguments: str, python: Path | str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), str(PROGRAM), "--work", str(tmp_path / "work"), *arguments],
            env={**os.environ, "COLUMNS": "80", **env},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return call


def results(folder: Path) -> dict[tuple[str, str], Any]:
    """What the jobs of the last run found, by type and picture."""
    with contextlib.closing(sqlite3.connect(folder / "work" / "jobs.db")) as connection:
        rows = connection.execute("SELECT type, payload, result FROM jobs").fetchall()
    return {(type, Path(json.loads(payload)["path"]).name): json.loads(result) for type, payload, result in rows}


def rounded(value: Any) -> Any:
    """The same within about a thousandth, whatever it is made of."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", OTHERS)
def test_another_configuration_finds_the_same(
    run: Run, sample: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    assert run().returncode == 0
    expected = results(tmp_path)
    result = run("--config", str(PROGRAM.with_name(name)))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "15 of 15 jobs done" in result.stdout
    assert results(tmp_path) == rounded(expected)


@pytest.mark.long
def test_programs_of_a_second_environment_find_the_same_where_the_first_has_no_model_library(
    run: Run, sample: Callable[[str], str], cache: Path, demo: ModuleType, tmp_path: Path
) -> None:
    """With programs.toml as it stands, at its place above the environment that it names."""
    assert run().returncode == 0
    expected = results(tmp_path)
    config = tmp_path / "examples" / "pictures" / "programs.toml"
    config.parent.mkdir(parents=True)
    shutil.copy(PROGRAM.with_name("programs.toml"), config)
    bare = without(tmp_path / "bare", [*demo.NEEDED, "numpy"])
    # A program inherits HOME, but not the variable that says where the session's cache is.
    (tmp_path / ".cache").symlink_to(cache)

    def attempt() -> subprocess.CompletedProcess[str]:
        return run("--config", str(config), python=bare, HOME=str(tmp_path))

    missing = attempt()
    assert missing.returncode == 2
    assert f"there is no program {tmp_path}" in missing.stderr
    assert missing.stderr.endswith(f"demo: {config} cannot be used here\n")

    with_everything(tmp_path / ".demo" / "ml")
    result = attempt()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "15 of 15 jobs done" in result.stdout
    assert results(tmp_path) == rounded(expected)
    # The other configurations need the libraries in this very environment.
    assert "onnxruntime" in run(python=bare).stderr


def test_the_sample_set_ends_in_a_table(run: Run, sample: Callable[[str], str]) -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso 0.95" in result.stdout
    assert "15 of 15 jobs done" in result.stdout


@pytest.mark.long
def test_of_two_hosts_one_is_killed_and_all_jobs_are_done(run: Run, shared_postgres: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(HOSTS), "--rounds", "10"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search("150 of 150 jobs done; [123] that host two had begun were run again", ran.stdout)


@pytest.mark.parametrize("name", ["supervisor.toml", *OTHERS])
def test_a_broken_picture_among_good_ones_is_named(
    run: Run, sample: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    images = tmp_path / "my pictures"
    images.mkdir()
    shutil.copy(sample("coffee.png"), images / "coffee.png")
    (images / "broken.jpg").write_text("no picture")
    (images / os.fsdecode(b"bad\xff.png")).touch()
    result = run("--images", str(images), "--config", str(PROGRAM.with_name(name)))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "3 of 6 jobs done" in result.stdout
    assert "2 pictures with a problem" in result.stdout
    table = result.stdout[result.stdout.index("───") :]
    assert table.count("not a picture") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--images", "/nowhere"), "/nowhere is no directory\n"),
        (("--config", "/none.toml"), "/none.toml cannot be read: "),
    ],
)
def test_what_is_missing_is_wrong_usage(run: Run, words: tuple[str, str], problem: str) -> None:
    result = run(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"demo: {problem}")


def test_the_starter_with_these_handlers_finds_what_is_in_its_picture(ml: None, tmp_path: Path) -> None:
    printed = output_of("supervisor init --ml", tmp_path)
    enqueue, *_ = shown = commands(printed)
    assert enqueue == "python pictures.py coffee.jpg"  # no library is missing
    assert "pools: tag, caption, nsfw" in output_of("supervisor check", tmp_path)
    output_of(" && ".join(shown), tmp_path)
    jobs = Queue(f"sqlite:///{tmp_path}/app.db").jobs()
    nsfw, caption, tag = (job.result for job in jobs)
    assert [one["label"] for one in tag["tags"]] == ["espresso"]
    assert caption["caption"] == "A picture of an espresso."
    assert nsfw["is_nsfw"] is False
