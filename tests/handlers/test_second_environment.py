"""The shipped handlers as programs of another virtual environment than the worker's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.programs.conftest import MakePair, pair

__all__ = ["pair"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> str:
    """The interpreter of an environment that has the libraries and us, though it is not ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "ml"], check=True, timeout=60)
    [packages] = (tmp_path / "ml" / "lib").glob("python*/site-packages")
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (packages / "others.pth").write_text(f"{Path(spec.origin).parents[1]}\n{ROOT}\n")
    return str(tmp_path / "ml" / "bin" / "python")


@pytest.mark.parametrize(
    ("handler", "options", "result"),
    [
        ("handlers.nsfw:NsfwClassifier", "threshold = 0.01", {"nsfw": 0.013, "is_nsfw": True, "model": "open-nsfw"}),
        ("handlers.tag:Tagger", "top_k = 1", {"tags": [{"label": "espresso", "score": 0.95}]}),
    ],
)
def test_a_shipped_handler_runs_in_another_environment(
    ml: None,
    environment: str,
    pair: MakePair,
    sample: Callable[[str], str],
    handler: str,
    options: str,
    result: dict[str, object],
) -> None:
    cache = f'env = {{ XDG_CACHE_HOME = "{os.environ["XDG_CACHE_HOME"]}" }}'
    made = pair(environment, "-m", "job_handler", handler, keys=f"options = {{ {options} }}\n{cache}").set_up()
    [program] = [p for p in psutil.Process().children() if p.cmdline()[-1] == handler]
    assert program.cmdline()[0] == environment

    found = json.loads(made.run(json.dumps({"path": sample("coffee.png")})).result or "null")

    for key, value in result.items():
        if key == "tags":
            [tag] = found["tags"]
            assert tag["label"] == "espresso"
        else:
            assert found[key] == (pytest.approx(value, abs=0.01) if isinstance(value, float) else value)
    gone = made.run('{"path": "gone.jpg"}').failure
    assert gone is not None
    assert (gone.kind, gone.message) == ("permanent", "no such file: gone.jpg")
