"""`supervisor top` in a real terminal of 80 × 24, on a supervisor that runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from supervisor import Status
from tests.site_under_test import Site, wait_for

from .conftest import Run

POOLS = """
[pools.work]
handler = "jobs:work"
min_workers = 1
max_workers = 4
[pools.broken]
handler = "jobs:broken"
workers = 1
retry = { max_attempts = 1 }
"""
HANDLERS = '''
import os, time
from ledger import record

def work(payload, ctx):
    """Runs until the file payload["until"] is there."""
    record("start", ctx)
    ctx.progress(0.42, "half \\x1b[31mred")
    while not os.path.exists(payload["until"]):
        time.sleep(0.005)
    record("end", ctx)

def broken(payload, ctx):
    record("start", ctx)
    raise ValueError("boom \\x1b]0;title\\x07 \\x1b[2J")
'''
MARK = "what was there before"


class Screen:
    """A terminal of its own with a shell in it. `text` has no colours; tmux has obeyed every control sequence."""

    def __init__(self, folder: Path) -> None:
        self._sockets = tempfile.mkdtemp(prefix="top-")  # not in tmp_path: a socket's path must be short
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), "exec sh")
        self.type(f"PS1='$ '; clear; echo '{MARK}'; stty -g > before", "Enter")
        wait_for(lambda: MARK in self.lines()[0] and (folder / "before").exists(), "a shell")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-u", "-S", f"{self._sockets}/tmux", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def lines(self) -> list[str]:
        return self._tmux("capture-pane", "-p").split("\n")[:-1]

    def wait(self, *words: str) -> list[str]:
        """Wait until all of these are on the screen."""
        seen: list[str] = []

        def there() -> bool:
            seen[:] = self.lines()
            return all(any(word in line for line in seen) for word in words)

        try:
            wait_for(there)
        except AssertionError:
            raise AssertionError(f"not there: {words}\n" + "\n".join(seen)) from None
        return seen

    def top(self, site: Site) -> None:
        command = f"{sys.executable} -m supervisor top -c {site.config}"
        self.type(f"{command}; echo code $?; stty -g > after", "Enter")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to what the shell is running."""
        [shell] = map(int, self._tmux("list-panes", "-F", "#{pane_pid}").split())
        [child] = psutil.Process(shell).children()
        child.send_signal(number)

    def close(self) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._sockets)


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux here")
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = Screen(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site(POOLS, HANDLERS)


def restored(screen: Screen, folder: Path, code: int) -> None:
    """The shell's screen is there again, and the terminal as it was."""
    seen = screen.wait(f"code {code}")
    assert MARK in seen[0]
    assert not any("›" in line for line in seen)
    wait_for(lambda: (folder / "after").exists() and (folder / "after").read_text())
    assert (folder / "after").read_text() == (folder / "before").read_text()


def test_the_screen_shows_everything_and_fits_and_c_stops_the_selected_job(site: Site, screen: Screen) -> None:
    site.start()
    failed = site.queue.enqueue("broken")
    job = site.queue.enqueue("work", {"until": "/nowhere"})
    site.running_pid(job)
    site.queue.wait(failed, timeout=20)
    screen.top(site)

    seen = screen.wait("app.db", "›broken", "WORKER", "work-1", "42%", "boom", "q quit")

    assert len(seen) == 24
    assert max(map(cell_len, seen)) <= 80
    assert "1 failed" in seen[0]
    assert any(line.startswith("supervisor ") for line in seen[1:3])
    assert "\\x1b[31mred" in next(line for line in seen if "42%" in line)
    assert seen[-1].startswith("q quit")

    screen.type("Tab", "c")
    screen.wait(f"cancel job {job} of work-1? y/n")
    screen.type("y")
    screen.wait(f"job {job} was asked to stop", "1 cancelled")
    assert site.queue.wait(job, timeout=20).status is Status.CANCELLED


def test_keys_pause_scale_retry_and_leave(site: Site, screen: Screen, tmp_path: Path) -> None:
    process = site.start()
    job = site.queue.enqueue("broken")
    assert site.queue.wait(job, timeout=20).status is Status.FAILED
    screen.top(site)
    screen.wait("›broken", "1 failed")

    screen.type("p")
    screen.wait("broken: paused")
    assert site.rows("SELECT name FROM job_controls WHERE kind = 'paused'") == [("broken",)]

    screen.type("Tab", "Tab", "r")
    screen.wait("retry 1 job of broken? y/n")
    assert site.job(job).status is Status.FAILED
    screen.type("y")
    screen.wait("1 job pending again")
    assert site.job(job).status is Status.PENDING

    screen.type("Tab", "Down", "+")
    screen.wait("pool work now has 2 workers")
    wait_for(lambda: site.supervisor_status(process)["pools"]["work"]["target"] == 2)
    screen.wait("an operator set 2")
    assert site.rows("SELECT value FROM job_controls WHERE kind = 'workers' AND name = 'work'") == [(2,)]
    screen.type("a")
    screen.wait("work is sized by the configuration again")

    screen.type("q")
    restored(screen, tmp_path, 0)


@pytest.mark.parametrize(("end", "code"), [("C-c", 0), ("TERM", 143), ("HUP", 129)])
def test_the_terminal_is_given_back_however_it_ends(
    site: Site, screen: Screen, tmp_path: Path, end: str, code: int
) -> None:
    screen.top(site)
    screen.wait("no supervisor is running", "q quit")

    if end == "C-c":
        screen.type(end)
    else:
        screen.signal(signal.Signals[f"SIG{end}"])

    restored(screen, tmp_path, code)


def test_it_follows_the_size_of_its_window(site: Site, screen: Screen) -> None:
    screen.top(site)
    screen.wait("q quit")

    screen.resize(50, 21)
    wait_for(lambda: len(screen.lines()) == 21 and screen.lines()[-1].startswith("q quit"))
    assert max(map(cell_len, screen.lines())) <= 50
    screen.resize(30, 21)
    screen.wait("too small")
    screen.resize(100, 30)
    wait_for(lambda: len(screen.lines()) == 30 and screen.lines()[-1].startswith("q quit"))


def test_a_database_that_is_away_for_a_while_is_shown_and_used_again(site: Site, screen: Screen) -> None:
    screen.top(site)
    screen.wait("1 pending")

    away = site.database.with_name("away.db")
    site.database.rename(away)
    screen.wait("old: app.db: the database does not exist", "1 pending")
    screen.type("Tab", "Tab", "p")
    screen.wait("not done: ")

    away.rename(site.database)
    wait_for(lambda: not any("old: " in line for line in screen.lines()))


def test_without_a_terminal_it_is_one_sentence(cli: Run, database: Path) -> None:
    ran = cli("top")

    assert (ran.code, ran.out) == (2, "")
    assert ran.errors() == ["top needs a terminal"]
    assert "status --json" in ran.err


def test_a_database_that_is_not_there_is_one_sentence_too(screen: Screen, tmp_path: Path) -> None:
    screen.type(f"{sys.executable} -m supervisor top --database sqlite:///none.db; echo code $?", "Enter")
    assert any("the database does not exist" in line for line in screen.wait("code 3"))
