"""`supervisor logs`: what jobs print, live and recorded."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.system.scoreboard import Scoreboard
from tests.cli.conftest import interrupted_by
from tests.site_under_test import Site, wait_for

from .conftest import COMMAND, Run

POOLS = '[pools.say]\nhandler = "jobs:say"\nworkers = 1\nretry = { max_attempts = 2, base = "10ms" }\n'
HANDLERS = '''
import os, time
from ledger import record

def say(payload, ctx):
    """Prints a text for each file that appears."""
    record("start", ctx)
    for number in range(payload.get("times", 1)):
        while payload.get("gate") and not os.path.exists(f"{payload['gate']}{number}"):
            time.sleep(0.005)
        print(payload["text"], number)
    if payload.get("boom"):
        raise ValueError("boom")
'''


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    site = make_site(POOLS, HANDLERS)
    site.start()
    return site


@pytest.fixture
def logs(site: Site) -> Callable[..., subprocess.Popen[str]]:
    def start(*words: object) -> subprocess.Popen[str]:
        command = [COMMAND, "logs", *map(str, words), "-c", str(site.config)]
        with interrupted_by(signal.SIG_DFL):
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


Logs = Callable[..., "subprocess.Popen[str]"]


def test_a_running_job_is_followed_to_its_end(site: Site, logs: Logs) -> None:
    gate = site.folder / "gate"
    job = site.queue.enqueue("say", {"text": "line", "times": 3, "gate": str(gate)})
    with logs("-f", job) as following:
        assert following.stdout is not None
        site.running_pid(job)
        heard = []
        for number in range(3):
            Path(f"{gate}{number}").touch()
            while f"  line {number}\n" not in heard:
                heard.append(following.stdout.readline())
                assert heard[-1], "it ended early"
        rest = following.stdout.read()
        assert following.wait(20) == 0

    assert [text for text in heard if "line" in text] == [f"  line {number}\n" for number in range(3)]
    assert heard[0].startswith("Attempt 1, ")
    assert "in say-1" in heard[0]
    assert "done" in rest
    assert "line" not in rest


def test_every_attempt_is_shown_with_its_error_and_the_exit_code_tells_of_the_end(site: Site, logs: Logs) -> None:
    job = site.queue.enqueue("say", {"text": "words", "boom": True})
    with logs("-f", job) as following:
        out, err = following.communicate(timeout=30)

    assert following.returncode == 1, err
    assert [text for text in out.splitlines() if text.startswith("Attempt ")] == [
        text for text in out.splitlines() if "Attempt 1" in text or "Attempt 2" in text
    ]
    assert out.count("  words 0\n") == 2
    assert out.count("ValueError: boom") == 2
    assert 'File "' in out
    with logs(job) as recorded:
        assert recorded.communicate(timeout=30)[0] == out
    assert recorded.returncode == 0


def test_the_lines_of_all_jobs_name_their_job(site: Site, cli: Run) -> None:
    first = site.queue.enqueue("say", {"text": "one\x1b[31m", "times": 2})
    second = site.queue.enqueue("say", {"text": "two", "boom": True})
    site.queue.wait(first, timeout=20)
    site.queue.wait(second, timeout=20)

    shown = cli("logs", "-c", site.config)
    lines = shown.out.splitlines()
    assert lines[:3] == [f"say {first} | one\\x1b[31m 0", f"say {first} | one\\x1b[31m 1", f"say {second} | two 0"]
    assert lines[-1].startswith(f"say {second} | attempt 2 ended after ")
    assert lines[-1].endswith("exception: ValueError: boom")
    assert cli("logs", "-c", site.config, "--lines", "1").out.splitlines() == lines[-1:]
    assert cli("logs", "-c", site.config, "--lines", "0").out == ""

    status = cli("status", "-c", site.config).out
    assert (
        "note: 1 job of say failed in the last hour: ValueError: boom\n→ `supervisor jobs list --status failed`"
        in status
    )

    document = cli("logs", first, "-c", site.config, "--json").document
    [run] = document["runs"]
    assert (document["job"], document["status"]) == (first, "done")
    assert (run["text"], run["outcome"]) == ("one\x1b[31m 0\none\x1b[31m 1\n", "done")
    assert cli("logs", first, "-c", site.config, "-n", "1").out.splitlines()[1] == "  one\\x1b[31m 1"


def test_all_jobs_are_followed_until_ctrl_c(site: Site, logs: Logs) -> None:
    old = site.queue.enqueue("say", {"text": "old"})
    site.queue.wait(old, timeout=20)
    with logs("-f", "--json", "--lines", "1") as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["job"] == old
        job = site.queue.enqueue("say", {"text": "new"})
        told = [json.loads(following.stdout.readline())]
        while told[-1]["outcome"] is None:
            told.append(json.loads(following.stdout.readline()))
        assert "".join(part["text"] for part in told) == "new 0\n"
        assert {part["job"] for part in told} == {job}
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130


@pytest.mark.parametrize(("words", "times"), [([], 50), (["-f"], 50), (["-f"], 1)])
def test_a_reader_that_goes_away_is_no_error(site: Site, logs: Logs, words: list[str], times: int) -> None:
    """Also while nothing is printed that could fail."""
    site.queue.wait(site.queue.enqueue("say", {"text": "words", "times": times}), timeout=20)
    with logs(*words) as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.stdout.close()
        assert following.wait(20) == 0
        assert following.stderr is not None
        assert "rror" not in following.stderr.read()


def test_a_job_that_waits_says_why(site: Site, logs: Logs, cli: Run) -> None:
    assert cli("pause", "say", "-c", site.config).code == 0
    job = site.queue.enqueue("say", {"text": "words"})
    with logs("-f", job) as following:
        assert following.stderr is not None
        assert "the type say is paused" in following.stderr.readline()
        assert cli("resume", "say", "-c", site.config).code == 0
        assert following.wait(20) == 0
        assert "words 0" in following.stdout.read()  # type: ignore[union-attr]


def test_a_reason_that_lasts_is_told_once_though_its_text_grows_older(site: Site, logs: Logs, cli: Run) -> None:
    gate = site.folder / "gate"
    first = site.queue.enqueue("say", {"text": "first", "gate": str(gate)}, concurrency_key="a")
    site.running_pid(first)
    silent = cli("logs", first, "-c", site.config)
    assert re.fullmatch(rf"job {first} has been running in say-1 for \S+ and has printed nothing so far\n", silent.err)
    held = site.queue.enqueue("say", {"text": "held"}, concurrency_key="a")
    free = site.queue.enqueue("say", {"text": "free"})
    with logs("-f", held) as of_held, logs("-f", free) as of_free:
        assert of_held.stderr is not None
        assert of_free.stderr is not None
        assert "note: job" in (told := of_held.stderr.readline())
        assert f"job {first} has been running in say-1 for" in told
        assert f"has been running job {first} (say) for" in of_free.stderr.readline()
        time.sleep(2.5)  # two more looks
        Path(f"{gate}0").touch()
        assert (of_held.wait(20), of_free.wait(20)) == (0, 0)
        assert "has been running in say-1 for" not in of_held.stderr.read()
        assert of_free.stderr.read() == ""


def test_what_a_living_run_prints_is_shown_without_following(site: Site, cli: Run) -> None:
    gate = site.folder / "gate"
    Path(f"{gate}0").touch()
    job = site.queue.enqueue("say", {"text": "half", "times": 2, "gate": str(gate)})
    site.running_pid(job)

    wait_for(lambda: "  half 0\n" in cli("logs", job, "-c", site.config).out)

    Path(f"{gate}1").touch()
    site.queue.wait(job, timeout=20)


def test_who_cannot_see_the_workers_is_told_and_sees_what_is_recorded(site: Site, cli: Run) -> None:
    job = site.queue.enqueue("say", {"text": "recorded"})
    site.queue.wait(job, timeout=20)
    [board] = [path for path in site.folder.rglob("scoreboard-*") if Scoreboard.open(path) is not None]
    hidden = board.with_name("hidden")  # root sees everything, so permissions would not do
    board.rename(hidden)
    try:
        waiting = site.queue.enqueue("nobody")
        ran = cli("logs", waiting, "-c", site.config)
        assert "only the user of the workers sees what running jobs print" in ran.err
        assert "recorded 0" in cli("logs", "-c", site.config).out
    finally:
        hidden.rename(board)


def test_unknown_and_silent_jobs_are_one_line(site: Site, cli: Run) -> None:
    ran = cli("logs", 999, "-c", site.config)
    assert (ran.code, ran.errors()) == (1, ["no job has the id 999"])
    job = site.queue.enqueue("nobody")
    ran = cli("logs", job, "-c", site.config)
    assert (ran.code, ran.out, ran.err) == (0, "", f"job {job} is pending; nothing that it printed is known\n")
