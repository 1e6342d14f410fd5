"""The number of a dead process may be a stranger's by now: it gets no signal of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


def namespace() -> list[str]:
    """How this user gets a pid namespace of its own; skips where that is not allowed."""
    for command in (NAMESPACE, ["unshare", "--user", "--map-root-user", *NAMESPACE[1:]]):
        try:
            chooses = 'echo 300 > /proc/sys/kernel/ns_last_pid && sh -c "echo \\$\\$"'
            tried = subprocess.run([*command, "sh", "-c", chooses], capture_output=True, text=True, timeout=20)
        except FileNotFoundError:
            break
        if (tried.returncode, tried.stdout) == (0, "301\n"):
            return command
    pytest.skip("no pid namespace can be made here")


@pytest.mark.fault(16)
def test_a_stranger_with_the_pid_of_a_dead_worker_gets_no_signal(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*namespace(), sys.executable, "-m", "tests.faults.recycled_pid", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert (ended.returncode, ended.stdout) == (0, "heard: []\n"), ended.stderr


@pytest.mark.fault(16)
def test_signals_go_through_descriptors_that_stand_for_one_process_only() -> None:
    """By number only oneself is signalled, and children of one's own that nobody has reaped: their pid is theirs."""
    by_number = re.compile(r"\bos\.kill(pg)?\(|\.terminate\(|(?<!ending)\.send_signal\(|\bsignal_(child|group)\(")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for package in ("supervisor", "handlers")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if path.parent.name != "system" and by_number.search(line)
        if not re.search(r"os\.getpid\(\)|# our own unreaped child$", line)
    ]
    assert found == []
