"""Configurations for tests: written, loaded, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import Settings, load
from supervisor.domain.errors import ConfigError

POOL = '[pools.tag]\nhandler = "jobs:tag"\n'


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration's path, as a user in its folder would give it."""
    monkeypatch.chdir(tmp_path)
    return Path("supervisor.toml")


def loaded(path: Path, text: str) -> Settings:
    path.write_text(text)
    return load(path)


def problems(path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(path, text)
    return caught.value.problems
