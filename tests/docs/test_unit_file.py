"""deploy/job-supervisor.service: what the supervisor relies on stands there, and systemd accepts it."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from supervisor.domain.text import seconds
from tests.docs.markdown import ROOT

UNIT = ROOT / "deploy" / "job-supervisor.service"

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here"
)


def parsed(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and their values; a key may stand there more than once."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), defaultdict(list))
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            section[key].append(value)
    return sections


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    sections = parsed(UNIT)
    assert list(sections) == ["Unit", "Service", "Install"]
    return sections["Service"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NotifyAccess", "main"),
        ("KillSignal", "SIGTERM"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("RuntimeDirectory", "job-supervisor"),
        ("RuntimeDirectoryMode", "0750"),  # a reverse proxy in the group reaches the socket of [admin]
        ("StateDirectory", "job-supervisor"),
        ("NoNewPrivileges", "yes"),
        ("PrivateTmp", "yes"),
        ("ProtectSystem", "strict"),
    ],
)
def test_what_the_doctor_does_not_check_is_set(service: dict[str, list[str]], key: str, value: str) -> None:
    assert service[key] == [value]


def test_the_service_has_a_user_and_may_write_beside_its_database(service: dict[str, list[str]]) -> None:
    assert service["User"] != ["root"]
    assert service["ReadWritePaths"]
    assert service["ExecStart"][0].split()[1:] == ["run", "--config", "supervisor.toml"]


def test_the_watchdog_is_slower_than_the_supervisors_loop_and_ml_runtimes_work(service: dict[str, list[str]]) -> None:
    [limit] = service["WatchdogSec"]
    assert seconds(float(limit)) >= 10
    assert "MemoryDenyWriteExecute" not in service


@needs_systemd_analyze
def test_systemd_accepts_the_unit_and_it_is_as_hard_as_it_is_said_to_be(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    unit.write_text(text.replace("/srv/app/venv/bin/supervisor", shutil.which("true") or "/bin/true"))
    for words in (["verify", unit], ["security", "--offline=true", "--threshold=15", "--no-pager", UNIT]):
        command = ["systemd-analyze", *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert ran.returncode == 0, ran
        assert "job-supervisor" not in ran.stderr
