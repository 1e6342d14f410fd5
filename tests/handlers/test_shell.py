"""handlers.shell with real programs: what may be started, what ends them, and what is kept of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from handlers.shell import Shell
from supervisor import Fail, Retry
from supervisor.worker.handler import Handler, HandlerError
from tests.site_under_test import Site, wait_for
from tests.stopwatch import Stopwatch

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(context: Callable[..., Any]) -> Run:
    """Run a payload; the keywords are options, of which `allow` is "any" by default."""

    def call(payload: Any, ctx: Any = None, **options: Any) -> dict[str, Any]:
        shell = Shell()
        shell.setup(context(**{"allow": "any", "timeout": 20.0, **options}))
        return shell.handle(payload, ctx or context())

    return call


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, r"options\.allow: no program may be started"),
        ({"allow": []}, r"options\.allow: no program may be started"),
        ({"allow": "all"}, r"options\.allow: no program may be started"),
        ({"allow": ["cat"]}, r"options\.allow: must have absolute paths, not 'cat'"),
        ({"allow": ["/bin/cat"], "shell": True}, r"options\.shell: a shell can start every program"),
        ({"allow": "any", "timeout": 0.0}, r"options\.timeout: must be greater than 0"),
    ],
)
def test_it_is_off_until_the_options_say_what_may_be_started(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HandlerError, match=problem):
        Handler(Shell, "handlers.shell:Shell").check_options(options)


def test_only_allowed_programs_are_started(run: Run, tmp_path: Path) -> None:
    allow = {"allow": ["/bin/echo"]}
    assert run({"argv": ["echo", "a b", "$HOME;x"]}, **allow)["stdout"] == "a b $HOME;x\n"
    assert run({"argv": ["/bin/echo"]}, **allow)["exit_code"] == 0
    own = tmp_path / "echo"
    own.write_text("#!/bin/sh\ntouch done\n")
    own.chmod(0o755)
    for name in (str(own), "/bin/cat", "../bin/echo", "./echo", "bin/echo"):
        with pytest.raises(Fail, match="this pool does not start"):
            run({"argv": [name]}, folder=str(tmp_path), **allow)
    assert not (tmp_path / "done").exists()


def test_a_command_line_needs_the_option(run: Run) -> None:
    with pytest.raises(Fail, match="a command line is refused"):
        run({"command": "echo a"})
    assert run({"command": "echo a | tr a b"}, shell=True)["stdout"] == "b\n"


def test_input_folder_and_environment_are_the_pools(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "s3cret")
    monkeypatch.setenv("TZ", "UTC")
    told = run({"argv": ["/bin/sh", "-c", "cat; pwd; env"], "input": "ä\n"}, folder=str(tmp_path))["stdout"]
    assert told.startswith(f"ä\n{tmp_path}\n")
    assert "TZ=UTC" in told
    assert "s3cret" not in told


def test_more_input_and_output_than_a_pipe_holds_is_no_deadlock(run: Run) -> None:
    result = run({"argv": ["/bin/cat"], "input": "x" * 3_000_000}, max_output=1000)
    assert (result["stdout"], result["truncated"], result["exit_code"]) == ("x" * 1000, True, 0)


def test_an_exit_code_is_retried_unless_it_is_final(run: Run) -> None:
    payload = {"argv": python("import sys; sys.exit('no such page')")}
    with pytest.raises(Retry, match="ended with exit code 1: no such page"):
        run(payload)
    with pytest.raises(Fail, match="ended with exit code 1: no such page"):
        run(payload, final=[1])
    with pytest.raises(Retry, match="was killed by SIGSEGV"):
        run({"argv": python("import os; os.kill(os.getpid(), 11)")})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([], "it is no object"),
        ({"args": ["a"]}, "unknown key 'args'"),
        ({}, "must have argv"),
        ({"argv": "echo a"}, "argv must be a list of strings"),
        ({"argv": []}, "argv must be a list of strings"),
        ({"argv": [""]}, "argv must be a list of strings"),
        ({"argv": ["/bin/echo", 1]}, "argv must be a list of strings"),
        ({"argv": ["/bin/echo", "a\0b"]}, "cannot be started"),
        ({"argv": ["/no/such/program"]}, "cannot be started: No such file"),
        ({"argv": ["/etc/passwd"]}, "cannot be started: Permission denied"),
        ({"argv": ["/bin/echo"], "timeout": 21}, "timeout must be seconds"),
        ({"argv": ["/bin/echo"], "timeout": True}, "timeout must be seconds"),
        ({"argv": ["/bin/echo"], "input": 5}, "input must be a string"),
        ({"argv": ["/bin/echo"], "input": "\ud800"}, "a lone surrogate"),
    ],
)
def test_an_invalid_payload_fails_for_good(run: Run, payload: Any, problem: str) -> None:
    with pytest.raises(Fail, match=problem):
        run(payload)


def group_of(marker: Path) -> int:
    return wait_for(lambda: int(marker.read_text() or 0) if marker.exists() else 0, "the program started")


def members(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


# Ignores SIGTERM, and has a child that does so, too.
STUBBORN = (
    "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 0.1; done\" & echo $$ > {}; while :; do sleep 0.1; done"
)


@pytest.mark.fault(103)
def test_a_time_limit_ends_the_program_and_what_it_has_started(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "group"
    with pytest.raises(Retry, match=r"was ended: it took longer than 0\.5 s"):
        run({"command": STUBBORN.format(marker), "timeout": 0.5}, shell=True)
    group = group_of(marker)
    wait_for(lambda: not members(group), "the group ended")


def test_a_cancelled_job_ends_its_program(run: Run, tmp_path: Path, context: Callable[..., Any]) -> None:
    ctx = context()
    ctx.cancelled = True
    watch = Stopwatch()
    result = run({"argv": ["/bin/sleep", "60"]}, ctx)
    assert (result["cancelled"], result["exit_code"]) == (True, -signal.SIGTERM)
    assert watch.seconds() < 10


@pytest.mark.fault(103)
def test_what_a_program_leaves_in_the_background_ends_with_it(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "group"
    watch = Stopwatch()
    result = run({"command": f"echo $$ > {marker}; sleep 60 & echo started"}, shell=True)
    assert (result["stdout"], result["exit_code"]) == ("started\n", 0)
    assert watch.seconds() < 15
    group = group_of(marker)
    wait_for(lambda: not members(group), "the group ended")


def test_a_run_leaves_no_descriptor(run: Run) -> None:
    run({"argv": ["/bin/true"]})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run({"argv": ["/bin/true"]})
        with pytest.raises(Fail):
            run({"argv": ["/no/such/program"]})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.fault(103)
def test_a_worker_that_is_killed_takes_its_program_along(make_site: Callable[..., Site], tmp_path: Path) -> None:
    marker = tmp_path / "group"
    site = make_site(
        """
        [pools.shell]
        handler = "handlers.shell:Shell"
        workers = 1
        options = { allow = "any", shell = true }
        """
    )
    site.start()
    site.queue.enqueue("shell", {"command": f"echo $$ > {marker}; sleep 60"})
    group = group_of(marker)
    [worker] = site.workers("shell")
    os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: not members(group), "the program ended")
