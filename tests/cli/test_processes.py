"""The command as a process: pipes, Ctrl-C, terminals, and a running supervisor that is steered."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.system.scoreboard import Scoreboard
from tests.site_under_test import wait_for
from tests.stopwatch import Stopwatch

from .conftest import COMMAND, command, execute

Start = Callable[..., Any]


def status(project: Path) -> dict[str, Any]:
    ran = command("status", "--json", cwd=project)
    return dict(json.loads(ran.stdout)) if ran.returncode == 0 else {"running": False, "pools": [], "workers": []}


def enqueue(project: Path, *arguments: str) -> int:
    ran = command("enqueue", "greet", *arguments, cwd=project)
    assert ran.returncode == 0, ran
    return int(ran.stdout.split()[0])


def test_a_burst_runs_what_is_due_and_says_with_its_exit_code_how_it_went(project: Path) -> None:
    enqueue(project, '{"name": "Ada"}')
    assert command("run", "--burst", cwd=project).returncode == 0
    enqueue(project, '{"boom": true}')

    ran = command("run", "--burst", cwd=project)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "\r" not in ran.stderr  # no progress, except at a terminal
    assert execute(project / "jobs.db", "SELECT status FROM jobs") == [("done",), ("failed",)]
    shown = command("jobs", "show", "2", cwd=project).stdout
    assert 'File "' in shown
    assert "ValueError: boom \\x1b[31m" in shown


def test_a_running_supervisor_obeys_within_a_second(project: Path, started: Start) -> None:
    supervisor = started("run")
    wait_for(lambda: any(worker["state"] == "idle" for worker in status(project)["workers"]))

    command("pause", "greet", cwd=project)
    held = enqueue(project, '{"name": "Ada"}')
    command("scale", "greet", "3", cwd=project)
    watch = Stopwatch()
    [board] = [board for path in project.rglob("scoreboard-*") if (board := Scoreboard.open(path)) is not None]
    wait_for(lambda: board.supervisor_status()["pools"]["greet"]["target"] == 3)
    assert watch.seconds() < 1.0
    wait_for(lambda: len(status(project)["workers"]) == 3)
    assert json.loads(command("jobs", "show", str(held), "--json", cwd=project).stdout)["status"] == "pending"
    [pool] = status(project)["pools"]
    assert (pool["fixed"], pool["why"]) == (3, "an operator set 3")
    assert "greet" in command("scale", "nope", "1", "--database", "sqlite:///jobs.db", cwd=project).stderr

    command("resume", "greet", cwd=project)
    command("scale", "greet", "auto", cwd=project)
    waited = command("enqueue", "greet", "--wait", '{"name": "Bo"}', cwd=project)
    assert (waited.returncode, waited.stderr) == (0, "")
    assert waited.stdout.splitlines()[1] == '{"greeting": "Bo"}'

    before = {worker["pid"] for worker in status(project)["workers"]}
    assert str(supervisor.pid) in command("reload", cwd=project).stdout
    wait_for(lambda: before.isdisjoint(worker["pid"] for worker in status(project)["workers"]))
    (project / "jobs.py").write_text("import nowhere\n")
    failed = command("reload", "--wait", cwd=project)
    assert failed.returncode == 1
    assert "the new code of greet failed" in failed.stdout
    assert "nowhere" not in failed.stdout
    assert re.search(r"^error: greet: .*nowhere", failed.stderr, re.MULTILINE)
    (project / "supervisor.toml").write_text("[pools.greet]\nhandler = 3\n")
    refused = command("reload", "--database", "sqlite:///jobs.db", cwd=project)
    assert refused.returncode == 2
    assert "supervisor.toml:2: pools.greet.handler" in refused.stderr


def test_status_shows_the_job_at_hand_in_80_columns_and_cancel_stops_it(project: Path, started: Start) -> None:
    started("run")
    job = enqueue(project, '{"sleep": 30}')
    command("pause", "other", "--force", cwd=project)
    command("enqueue", "unknown.type", cwd=project)
    view = wait_for(lambda: next((w for w in status(project)["workers"] if w["job"] == job), None))
    assert (view["pool"], view["state"], view["progress"]) == ("greet", "busy", 0.5)
    assert view["memory"] > 1 << 20
    of_job = command("jobs", "show", str(job), cwd=project).stdout
    assert re.search(r"^progress +50% half$", of_job, re.MULTILINE)
    assert re.search(r"^claimed by +greet-1 \(token 1\)$", of_job, re.MULTILINE)
    assert "attempt 1 started" in of_job
    document = json.loads(command("jobs", "show", str(job), "--json", cwd=project).stdout)
    assert (document["progress"], document["worker"]) == (0.5, "greet-1")
    assert view["beat_age"] < 10

    shown = command("status", cwd=project, env=os.environ | {"COLUMNS": "80"}).stdout

    # Paths are shown whole, however deep the folder of this test is.
    assert max(len(text) for text in shown.splitlines() if str(project)[:30] not in text) <= 80
    assert re.search(rf"greet-1 +{view['pid']} +busy +{job} ", shown)
    assert "no pool takes the type unknown.type: 1 job waits" in shown
    assert re.search(r"^other +0 paused", shown, re.MULTILINE)
    said = command("jobs", "cancel", str(job), cwd=project).stdout
    assert said.startswith(f"job {job} was asked to stop; it will be interrupted if")
    wait_for(lambda: execute(project / "jobs.db", "SELECT status FROM jobs")[0] == ("cancelled",))


def test_a_burst_at_a_terminal_shows_its_progress_and_leaves_no_thread(project: Path) -> None:
    (project / "jobs.py").write_text(
        "import os, time\n"
        "def greet(payload, ctx):\n"
        "    time.sleep(0.1)\n"
        "    return len(os.listdir(f'/proc/{os.getppid()}/task'))\n"
    )
    for _ in range(4):
        enqueue(project)
    ours, theirs = pty.openpty()
    with subprocess.Popen([COMMAND, "run", "--burst"], cwd=project, stderr=theirs, stdout=theirs) as process:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:
                break
        assert process.wait(timeout=30) == 0
    os.close(ours)
    assert re.search(rb"\r\x1b\[2K.*4/4.* in \d+\.\d s", drawn)
    assert re.search(rb"1 busy", drawn)
    assert execute(project / "jobs.db", "SELECT DISTINCT result FROM jobs") == [("1",)]


def piped(database: Path, line: str) -> tuple[str, str]:
    ran = subprocess.run(["bash", "-c", line], cwd=database.parent, capture_output=True, text=True, timeout=60)
    return ran.stdout, ran.stderr


def test_a_reader_that_has_seen_enough_is_no_fault(database: Path) -> None:
    for _ in range(3):
        execute(database, "INSERT INTO jobs (type, payload) VALUES ('greet', json_quote(hex(randomblob(60000))))")
    assert piped(database, f"{COMMAND} jobs list --json | head -c 1; echo $PIPESTATUS") == ("[0\n", "")


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_an_output_that_cannot_be_written_is_one_line(database: Path, redirection: str) -> None:
    _, said = piped(database, f"{COMMAND} status {redirection}; echo $? >&2")
    assert said in ("0\n", "error: No space left on device\n1\n")


def test_a_latin_terminal_gets_what_it_can_show(database: Path) -> None:
    execute(database, "INSERT INTO jobs (type, payload) VALUES ('greet', '\"→ é \\ud800\"')")
    environment = os.environ | {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}

    listed, document = (
        subprocess.run([COMMAND, "jobs", "list", *more], cwd=database.parent, env=environment, capture_output=True)
        for more in ([], ["--json"])
    )

    assert (listed.returncode, listed.stderr) == (0, b"")
    assert document.stdout.isascii()
    # Half a character, which other programs' parsers refuse, is told as one that is missing.
    assert json.loads(document.stdout)[0]["payload"] == "→ é \ufffd"


@pytest.mark.parametrize("reading", [False, True])
def test_ctrl_c_is_one_line_and_while_jobs_are_read_none_is_enqueued(
    project: Path, started: Start, reading: bool
) -> None:
    process: Any = started("enqueue", "greet", "-" if reading else "--wait")
    if reading:
        process.stdin.write("1\n2")
        process.stdin.flush()
        wait_for(lambda: unread(process.stdin) == 0)
    else:
        assert process.stderr.readline().startswith("note: no supervisor is running")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert (project / "jobs.db").exists() != reading


def unread(pipe: Any) -> int:
    """Bytes that the reader of a pipe has not taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_why_a_job_waits_is_told(project: Path, started: Start) -> None:
    def shown(job: int) -> str:
        return command("jobs", "show", str(job), cwd=project).stdout

    waiting = {type_: int(command("enqueue", type_, cwd=project).stdout) for type_ in ("greet", "gret")}
    picky = enqueue(project, "{}", "--requires", "gpu")
    assert re.search(
        "^waits +no supervisor is running; `supervisor run` starts one$", shown(waiting["greet"]), re.MULTILINE
    )
    command("pause", "greet", cwd=project)
    started("run")
    wait_for(lambda: status(project)["pools"])
    assert re.search(
        "^waits +the type greet is paused; `supervisor resume greet`", shown(waiting["greet"]), re.MULTILINE
    )
    assert re.search("^waits +no pool takes the type gret; did you mean greet", shown(waiting["gret"]), re.MULTILINE)
    assert re.search("^greet .* paused$", command("status", cwd=project).stdout, re.MULTILINE)

    command("resume", "greet", cwd=project)
    wait_for(lambda: execute(project / "jobs.db", "SELECT status FROM jobs WHERE id = 1") == [("done",)])
    sentence = "no pool that takes greet has the capabilities that some of its jobs require: gpu"
    assert f"waits {sentence}" in " ".join(shown(picky).split())  # it is wrapped
    assert sentence in command("status", cwd=project).stdout
    [unmet] = status(project)["unmet"]
    assert (unmet["name"], unmet["fact"]) == ("capabilities", sentence)
    assert "waits" not in shown(waiting["greet"])


def ignored(process: Any) -> set[int]:
    """The signals that a process ignores."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(next(line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_command_that_was_started_with_sigint_ignored_leaves_it_ignored(project: Path, started: Start) -> None:
    process = started("enqueue", "greet", "--wait", interrupt=signal.SIG_IGN)
    assert process.stderr.readline().startswith("note: no supervisor is running")

    process.send_signal(signal.SIGINT)
    assert signal.SIGINT in ignored(process)
    supervisor = started("run", "--burst")

    assert process.wait(timeout=60) == 0
    assert supervisor.wait(timeout=60) == 0
    assert execute(project / "jobs.db", "SELECT status FROM jobs") == [("done",)]


def test_a_supervisor_obeys_sigint_even_where_its_caller_ignored_it(project: Path, started: Start) -> None:
    supervisor = started("run", interrupt=signal.SIG_IGN)
    wait_for(lambda: any(worker["state"] == "idle" for worker in status(project)["workers"]))

    supervisor.send_signal(signal.SIGINT)

    assert supervisor.wait(timeout=30) == 0
    assert enqueue(project) == 1
