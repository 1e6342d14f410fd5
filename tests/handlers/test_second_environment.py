"""The shipped handlers as programs of another virtual environment than the worker's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.handlers.environments import with_everything
from tests.programs.conftest import MakePair, pair

__all__ = ["pair"]


@pytest.fixture
def environment(tmp_path: Path) -> str:
    return str(with_everything(tmp_path / "ml"))


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
