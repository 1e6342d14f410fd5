"""examples/pictures/demo.py: what it takes, what it shows, how it ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

PROGRAM = Path(__file__).parents[2] / "examples" / "pictures" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures_demo", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def row(demo: ModuleType, name: str, **jobs: Any) -> Any:
    """A row whose jobs have these results; a text stands for an error."""
    made = [
        SimpleNamespace(
            type=kind,
            status="failed" if isinstance(result, str) else "done",
            last_error=result if isinstance(result, str) else None,
            result=None if isinstance(result, str) else result,
            started_at=10.0,
            completed_at=10.02,
        )
        for kind, result in jobs.items()
    ]
    return demo.Row(Path(name), tuple(made))


def shown(demo: ModuleType, *rows: Any) -> str:
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        console.print(demo.table(list(rows)))
    return capture.get()


GOOD = {
    "tag": {"tags": [{"label": "espresso", "score": 0.951}]},
    "caption": {"caption": "A picture of an espresso.", "method": "template"},
    "nsfw": {"nsfw": 0.013, "is_nsfw": False},
}


def test_files_named_like_pictures_are_taken_in_order(demo: ModuleType, tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpeg", "C.TifF", "notes.txt", "png"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.gif").symlink_to("nowhere")
    names = [path.name for path in demo.own_pictures(str(tmp_path))]
    assert names == ["a.jpeg", "b.PNG", "C.TifF", "dangling.gif"]


def test_a_folder_without_pictures_is_one_sentence(demo: ModuleType, tmp_path: Path) -> None:
    for name, message in (
        ("", "is no directory"),
        (str(tmp_path / "x"), "is no directory"),
        (str(tmp_path), "no pictures"),
    ):
        with pytest.raises(demo.NothingToDo, match=message):
            demo.own_pictures(name)


def test_the_table_fits_80_columns_and_says_how_captions_are_made(demo: ModuleType) -> None:
    text = shown(demo, row(demo, "coffee.png", **GOOD))
    assert "espresso 0.95" in text
    assert "0.013" in text
    assert "60 ms" in text
    assert " ".join(text.split()).count("template") == 1
    assert max(map(len, text.splitlines())) <= 80
    by_model = {**GOOD, "caption": {"caption": "a cup", "method": "model"}}
    assert "template" not in shown(demo, row(demo, "coffee.png", **by_model))


def test_three_failures_for_one_reason_are_one_message(demo: ModuleType) -> None:
    bad = row(demo, "[b]x\n.png", tag="not a picture", caption="not a picture", nsfw="not a picture")
    assert bad.problem == "not a picture"
    text = shown(demo, bad)
    assert text.count("not a picture") == 1
    assert "[b]x�.png" in text
    assert row(demo, "x.png", **{**GOOD, "nsfw": "no room"}).problem == "no room"
    assert row(demo, "x.png", **GOOD).problem == ""


def test_its_configuration_names_every_type(demo: ModuleType) -> None:
    pools = tomllib.loads(PROGRAM.with_name("supervisor.toml").read_text())["pools"]
    assert set(pools) == set(demo.TYPES)
    assert pools["caption"]["options"]["method"] == "template"


@pytest.fixture
def run(ml: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    if not Path(sys.executable).with_name("supervisor").exists():
        pytest.skip("job-supervisor is not installed in this environment")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), "--work", str(tmp_path / "work"), *arguments],
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return call


def test_the_sample_set_ends_in_a_table(
    run: Callable[..., subprocess.CompletedProcess[str]], sample: Callable[[str], str]
) -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso 0.95" in result.stdout
    assert "15 of 15 jobs done" in result.stdout


def test_a_broken_picture_among_good_ones_is_named(
    run: Callable[..., subprocess.CompletedProcess[str]], sample: Callable[[str], str], tmp_path: Path
) -> None:
    images = tmp_path / "my pictures"
    images.mkdir()
    shutil.copy(sample("coffee.png"), images / "coffee.png")
    (images / "broken.jpg").write_text("no picture")
    (images / os.fsdecode(b"bad\xff.png")).touch()
    result = run("--images", str(images))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "3 of 6 jobs done" in result.stdout
    assert "2 pictures with a problem" in result.stdout
    table = result.stdout[result.stdout.index("───") :]
    assert table.count("not a picture") == 1


def test_a_folder_that_is_missing_is_wrong_usage(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = run("--images", "/nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "demo: /nowhere is no directory\n"
