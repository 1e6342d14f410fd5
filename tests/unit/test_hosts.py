"""The names of hosts, and which pools run where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.config.machine import elsewhere, of_host, own_host
from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError

SERVER = "postgresql://db/app"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "supervisor.toml"
    file.write_text(
        '[pools.any]\nhandler = "jobs:a"\n[pools.gpu]\nhandler = "jobs:b"\nhosts = ["gpu-*", "big"]\n', encoding="utf-8"
    )
    return load(file)


def test_a_host_is_called_what_the_environment_says_or_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERVISOR_HOST", raising=False)
    assert own_host(SERVER) == socket.gethostname()
    monkeypatch.setenv("SUPERVISOR_HOST", "gpu-1")
    assert own_host(SERVER) == "gpu-1"
    assert own_host("sqlite:////srv/app.db") == socket.gethostname()
    monkeypatch.setenv("SUPERVISOR_HOST", "gpu 1")
    with pytest.raises(ConfigError, match=r"\$SUPERVISOR_HOST: 'gpu 1' is not a host name"):
        own_host(SERVER)


@pytest.mark.parametrize(("host", "there"), [("gpu-1", True), ("big", True), ("web", False), ("xgpu-1", False)])
def test_a_pool_runs_where_the_name_matches(settings: Settings, host: str, there: bool) -> None:
    assert list(of_host(settings, (), host).pools) == (["any", "gpu"] if there else ["any"])
    assert elsewhere(settings.pools, host) == ({} if there else {"gpu": "gpu-*, big"})


def test_a_pool_that_was_asked_for_must_run_here(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="the pool gpu runs on gpu-\\*, big, not on the host web"):
        of_host(settings, ("gpu",), "web")
    with pytest.raises(ConfigError, match="there is no pool 'gpo'; there are any, gpu; did you mean gpu"):
        of_host(settings, ("gpo",), "gpu-1")
    settings = settings._replace(pools={"gpu": settings.pools["gpu"]})
    with pytest.raises(ConfigError, match="no pool runs on the host web: gpu on gpu-\\*, big"):
        of_host(settings, (), "web")
