"""deploy/install.sh with stand-ins for systemd, pip and our own program, where it may write what it likes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

# Its own /etc, /run and /srv; the checkout lies directly below /.
SURROUNDINGS = """
set -e
[ -e "$1/etc" ] || cp -a /etc "$1/etc"
mkdir -p "$1/etc/systemd/system" "$1/run/systemd/system"
mount --bind "$2" /mnt
mount --bind "$1/etc" /etc
mount --bind "$1/run" /run
mount --bind "$1/srv" /srv
shift 2
exec "$@"
"""
STAND_INS = {
    "systemctl": """
echo "systemctl $*" >>"$CALLS"
for word; do case $word in
    is-enabled | is-active) exec test -e /srv/active ;;
    start) touch /srv/active ;;
esac; done
""",
    "runuser": 'shift 3\nexec "$@"',  # -u USER --
    "python3": """
[ "$1 $2" = "-m venv" ] || exec REAL "$@"
mkdir -p "$3/bin"
cp "$STAND_INS/pip" "$STAND_INS/supervisor" "$3/bin"
""",
    "pip": 'echo "pip $*" >>"$CALLS"',
    "supervisor": """
echo "supervisor $*" >>"$CALLS"
case $1 in
    init) echo 'database = "sqlite:///./app.db"' >"$2/supervisor.toml"; : >"$2/jobs.py" ;;
    check) if grep broken /srv/app/jobs.py >&2; then exit 2; fi ;;
esac
""",
}


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        (folder / "bin").mkdir()
        (folder / "srv").mkdir()
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text.replace('REAL', shutil.which('python3') or '')}\n")
            (folder / "bin" / name).chmod(0o755)

    def install(self, code: int = 0) -> tuple[list[str], str]:
        """Returns the calls that matter, and what it said."""
        self.calls.write_text("")
        where = {"STAND_INS": str(self.folder / "bin"), "CALLS": str(self.calls)}
        script = ["sh", "/mnt/deploy/install.sh", "--user", "nobody"]
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", SURROUNDINGS, "sh", self.folder, ROOT, *script],
            env={**os.environ, **where, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        words = ("start", "restart", "reload", "install", "check")
        calls = [call for call in self.calls.read_text().splitlines() if set(words) & set(call.split())]
        return calls, ended.stdout + ended.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this needs root, and mount namespaces")
    return Machine(tmp_path)


def test_a_run_after_a_change_of_the_handlers_reloads_them_and_no_other_run_does(machine: Machine) -> None:
    calls, _ = machine.install()
    assert "systemctl start job-supervisor" in calls
    jobs = machine.folder / "srv/app/jobs.py"

    (machine.folder / "srv/app/data/note.py").write_text("written by a job")
    calls, said = machine.install()
    assert "everything is in place: nothing was changed" in said
    assert calls == []

    for change in (jobs, machine.folder / "srv/app/supervisor.toml", machine.folder / "srv/app/package/module.py"):
        change.parent.mkdir(exist_ok=True)
        with change.open("a") as file:
            file.write("\n# another\n")
        calls, said = machine.install()
        assert "reloaded the service" in said
        assert "supervisor reload --wait --config /srv/app/supervisor.toml" in calls
        assert not any(call.startswith("pip") for call in calls)


def test_handlers_that_cannot_be_loaded_are_reported_every_time_and_not_reloaded(machine: Machine) -> None:
    machine.install()
    (machine.folder / "srv/app/jobs.py").write_text("broken\n")
    for _ in range(2):
        calls, said = machine.install(code=1)
        assert "the service goes on with those that it has" in said
        assert not any("reload" in call for call in calls)


def test_a_checkout_directly_below_the_root_is_named_as_it_is(machine: Machine) -> None:
    calls, _ = machine.install()
    [installed] = [call for call in calls if call.startswith("pip install")]
    assert installed.endswith(" /mnt[admin]")
