"""What the answers of nvidia-smi are taken for, with a program in its place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.supervision.memory_shares import DeviceMeter
from supervisor.supervision.time_limits import TerminationLadder
from supervisor.supervision.worker_process import Watched
from supervisor.system import child
from tests.site_under_test import wait_for

MIB = 1 << 20


class Smi:
    """The program, and who asks it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "nvidia-smi"
        self.meter = DeviceMeter()
        self.now = 0.0

    def will(self, script: str) -> None:
        self.file.write_text(f"#!/bin/sh\n{script}\n")
        self.file.chmod(0o755)

    def ask(self, *workers: Any) -> list[Any]:
        self.meter.look({"0"})
        self.meter.repeat(workers, self.now, busy=False)
        return self.answer(*workers)

    def answer(self, *workers: Any) -> list[Any]:
        def ended() -> bool:
            list(child.reap())
            program = self.meter._running
            return program is None or program.status is not None

        wait_for(ended, "the end of the program")
        return self.meter.take(workers)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Smi(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The pid of another process."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    list(child.reap())


def worker(pid: int | None = None, done: int = 1) -> Any:
    slot = SimpleNamespace(read=lambda: SimpleNamespace(done=done))
    pid = os.getpid() if pid is None else pid
    return SimpleNamespace(
        request=SimpleNamespace(incarnation=f"w{pid}-{done}", device="0"),
        process=SimpleNamespace(pid=pid),
        is_ready=True,
        slot=slot,
        watched=Watched(TerminationLadder(), on_device=-1),
    )


def told(capsys: pytest.CaptureFixture[str]) -> int:
    captured = capsys.readouterr()
    return (captured.out + captured.err).count("devices_unmeasured")


def test_an_answer_is_noted_in_the_workers_that_it_names(smi: Smi) -> None:
    one = worker()
    smi.will(f"echo '{one.process.pid}, 6000'")
    assert smi.ask(one) == [one]
    assert one.watched.on_device == 6000 * MIB


@pytest.mark.parametrize("how", ["kill -9 $$", "exit 9"])
def test_part_of_an_answer_is_none_which_is_told_once_and_tried_again(
    smi: Smi, how: str, sleeper: int, capsys: pytest.CaptureFixture[str]
) -> None:
    named, missing = worker(), worker(sleeper)
    smi.will(f"echo '{named.process.pid}, 6000'; {how}")
    for _ in range(2):
        assert smi.ask(named, missing) == []
        assert smi.meter.broken
    assert {named.watched.on_device, missing.watched.on_device} == {-1}
    assert told(capsys) == 1

    smi.will(f"echo '{named.process.pid}, 6000'")
    assert smi.ask(named, missing) == [named, missing]
    assert (named.watched.on_device, missing.watched.on_device) == (6000 * MIB, 0)
    assert not smi.meter.broken


def test_a_program_that_hangs_does_not_hold_up_the_pools(smi: Smi, capsys: pytest.CaptureFixture[str]) -> None:
    """It may hang in a driver, where even SIGKILL does not end it."""
    one = worker()
    smi.will("kill -STOP $$")
    smi.meter.look({"0"})
    for smi.now in (0.0, 19.0, 21.0):
        assert not smi.meter.broken
        smi.meter.repeat([one], smi.now, busy=False)
    assert smi.meter.broken
    assert "it gave no answer within 20 s" in "".join(capsys.readouterr())

    assert smi.answer(one) == []
    smi.will(f"echo '{one.process.pid}, 5'")
    assert smi.ask(one) == [one]
    assert not smi.meter.broken


def test_a_worker_that_has_ended_meanwhile_is_not_measured_as_small(smi: Smi, sleeper: int) -> None:
    living, dying = worker(), worker(sleeper)
    smi.will(f"kill -9 {sleeper}; echo '{living.process.pid}, 6000'")
    smi.meter.look({"0"})
    smi.meter.repeat([living, dying], smi.now, busy=False)
    program = smi.meter._running
    assert program is not None
    os.waitid(os.P_PID, program._process.pid, os.WEXITED | os.WNOWAIT)
    os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)  # a zombie until it is reaped
    program.ended(0)

    assert smi.meter.take([living, dying]) == [living]
    assert dying.watched.on_device == -1


def test_a_model_that_is_loaded_with_the_first_job_is_no_failure_of_the_program(
    smi: Smi, capsys: pytest.CaptureFixture[str]
) -> None:
    lazy = worker(done=0)
    smi.will("true")
    assert smi.ask(lazy) == [lazy]
    assert not smi.meter.broken
    assert told(capsys) == 0

    assert smi.ask(worker(done=1))
    assert smi.meter.broken
    assert told(capsys) == 1


def test_a_program_that_is_installed_later_is_found(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker()
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    smi.ask(one)
    assert smi.meter.broken
    monkeypatch.setenv("PATH", path)
    smi.will(f"echo '{one.process.pid}, 1'")
    assert smi.ask(one) == [one]
    assert not smi.meter.broken


def test_only_a_child_that_was_started_here_is_ours() -> None:
    program = child.Subprocess(["true"])
    pid, pidfd = child.fork(lambda: 0, role="other", keep=())
    os.close(pidfd)
    orphan = os.fork()
    if orphan == 0:
        os._exit(0)
    try:
        assert child.is_ours(pid)
        assert child.is_ours(program._process.pid)
        assert not child.is_ours(orphan)
        reaped: set[int] = set()
        wait_for(lambda: reaped.update(found for found, _, _ in child.reap()) or len(reaped) >= 3, "the three")
        assert not child.is_ours(pid)
        assert not child.is_ours(program._process.pid)
        assert (program.status, program.output()) == (0, b"")
    finally:
        list(child.reap())
