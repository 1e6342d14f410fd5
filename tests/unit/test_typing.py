"""Type checkers know the parameters of a task: they accept the right call and reject the wrong one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "typing_examples"
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def wrong_lines(name: str) -> list[int]:
    lines = (HERE / name).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# wrong")]


def by_mypy(folder: Path, name: str) -> set[int]:
    command = [BIN / "mypy", "--strict", "--config-file=", f"--cache-dir={folder}", HERE / name]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"MYPYPATH": str(ROOT)}, check=False)
    assert "error: Cannot find" not in ran.stdout, ran.stdout
    return {int(line) for line in re.findall(rf"{name}:(\d+): error", ran.stdout)}


def by_pyright(folder: Path, name: str) -> set[int]:
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "include": [str(HERE / name)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [BIN / "basedpyright", "--pythonpath", sys.executable, "--outputjson", "--project", folder]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_the_right_calls_are_accepted_and_the_wrong_ones_are_not(checker, tmp_path: Path) -> None:
    assert checker(tmp_path, "right.py") == set()
    assert checker(tmp_path, "wrong.py") == set(wrong_lines("wrong.py"))
