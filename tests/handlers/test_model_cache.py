"""handlers.model_cache: what comes out is what went in."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers import model_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "job-supervisor"


def test_what_is_kept_is_found() -> None:
    assert model_cache.find("net") is None
    model_cache.keep("net", b"content")
    assert model_cache.find("net") == b"content"
    assert model_cache.find("other") is None


@pytest.mark.parametrize("damage", [b"", b"conten", b"Content", b"content and more"])
def test_a_damaged_file_is_removed_not_used(folder: Path, damage: bytes) -> None:
    path = model_cache.keep("net", b"content")
    path.write_bytes(damage)
    assert model_cache.find("net") is None
    assert list(folder.iterdir()) == []


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert model_cache.folder() == tmp_path / "home" / ".cache" / "job-supervisor"


def test_a_cache_that_cannot_be_made_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="set XDG_CACHE_HOME"):
        model_cache.folder()
