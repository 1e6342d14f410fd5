"""Type checkers know the parameters of tasks and of a queue, awaited or not: they accept the right calls and reject the
wrong ones.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests" / "typing_examples"

Mistakes = set[tuple[str, int]]  # file and line


def wrong_lines() -> Mistakes:
    return {
        (file.name, number)
        for file in EXAMPLES.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }


def run(folder: Path, module: str, *arguments: str) -> str:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: it comes with the extra dev")
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    ).stdout


def by_mypy(_: Path) -> Mistakes:
    files = sorted(str(file.relative_to(ROOT)) for file in EXAMPLES.glob("*.py"))
    # Where and as `make types` runs it: each would make the other's cache useless if it had other settings.
    told = run(ROOT, "mypy", "--strict", *files)
    assert "error: Cannot find" not in told, told
    return {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+): error", told)}


@pytest.mark.long
@pytest.mark.parametrize("what", ["supervisor/cli/starter/plain", "supervisor/cli/starter/fastapi", "examples/fastapi"])
def test_mypy_is_content_with_the_applications_to_begin_with(what: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("fastapi") is None:
        pytest.skip("FastAPI is not installed")
    for file in (ROOT / what).glob("*.py*"):
        (tmp_path / file.name.removesuffix(".txt")).write_text(file.read_text())
    told = run(tmp_path, "mypy", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}", "--follow-imports=silent", ".")
    assert "Success" in told, told


def by_pyright(folder: Path) -> Mistakes:
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict", "include": [str(EXAMPLES)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    told = run(folder, "basedpyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(folder))
    found = json.loads(told)["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [pytest.param(by_mypy, marks=pytest.mark.long), by_pyright])
def test_the_right_calls_are_accepted_and_the_wrong_ones_are_not(
    checker: Callable[[Path], Mistakes], tmp_path: Path
) -> None:
    wrong = wrong_lines()
    assert {name for name, _ in wrong} == {"queue_wrong.py", "tasks_wrong.py"}
    assert checker(tmp_path) == wrong
