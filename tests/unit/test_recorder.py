"""What a run uses: CPU time and peak memory, measured in a process of its own, which is what a worker is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from supervisor.domain.job import Claim
from supervisor.domain.recovery import JobPolicy
from supervisor.system import resources
from supervisor.system.resources import Meter
from supervisor.worker.context import Board, Context
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler
from supervisor.worker.recorder import WORTH, Recorder

MIB = 1 << 20
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A Python that runs the lines that it is given, one after another, and answers each."""
    loop = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert process.stdout.readline()


def test_a_process_is_measured_by_what_it_has_used_since(child: subprocess.Popen[str]) -> None:
    seen = Meter(child.pid)
    tell(child, f"x = b'x' * {200 * MIB}; del x")
    assert (seen.peak() or 0) > 200 * MIB

    seen.restart()
    assert (seen.peak() or 0) < 100 * MIB
    tell(child, f"x = b'x' * {120 * MIB}; del x")
    assert 120 * MIB < (seen.peak() or 0) < 200 * MIB

    before = seen.cpu()
    tell(child, "import time; end = time.process_time() + 0.3")
    tell(child, "while time.process_time() < end: pass")
    assert 0.25 <= seen.cpu() - before < 2
    seen.close()


def test_where_the_peak_cannot_be_forgotten_only_a_higher_one_is_told(
    child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_FORGET_PEAK", b"refused")  # EINVAL stands for EROFS and EACCES
    seen = Meter(child.pid)
    tell(child, f"x = b'x' * {200 * MIB}; del x")
    seen.restart()

    tell(child, f"x = b'x' * {100 * MIB}; del x")
    assert seen.peak() is None
    tell(child, f"x = b'x' * {300 * MIB}; del x")
    assert (seen.peak() or 0) > 300 * MIB


def test_of_a_process_that_is_gone_nothing_is_known(child: subprocess.Popen[str]) -> None:
    seen = Meter(child.pid)
    child.kill()
    child.wait()
    seen.restart()

    assert (seen.cpu(), seen.peak()) == (0.0, None)
    assert Meter(child.pid).peak() is None


def test_unless_it_is_attached_it_measures_nothing_and_prints_go_where_they_went(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def slow(payload: Any, ctx: Context) -> None:
        sys.stdout.write("printed\n")
        time.sleep(WORTH)

    recorder = Recorder()
    recorder.read_meters(time.monotonic())
    executor = Executor(Handler(slow, "slow"), Board(), JobPolicy(), options={}, recorder=recorder)
    before = time.time()
    usage = executor.run(Claim(1, 1, "slow", "{}", 1, None, 0)).usage

    assert usage is not None
    assert before <= (usage.started_at or 0) <= time.time()
    assert WORTH <= (usage.duration or 0) < 5
    assert (usage.cpu_time, usage.peak_memory, usage.log) == (None, None, None)
    assert capsys.readouterr().out == "printed\n"


WORKER = """
import os, subprocess, sys, time
from supervisor.domain.job import Claim
from supervisor.domain.recovery import JobPolicy
from supervisor.worker.context import Board
from supervisor.worker.executor import Executor
from supervisor.worker.loader import Handler
from supervisor.worker.recorder import Recorder

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

recorder = Recorder()
recorder.attach()
todo = []
handler = Handler(lambda payload, ctx: todo.pop()(), "whatever is to do")
executor = Executor(handler, Board(), JobPolicy(), options={}, recorder=recorder)

def run(work):
    todo.append(work)
    settlement = executor.run(Claim(1, 1, "tag", "{}", 1, None, 0))
    assert settlement.failure is None, settlement.failure
    return settlement.usage

recorder.read_meters(time.monotonic())
"""


def in_a_worker(tmp_path: Path, lines: str) -> Any:
    """What `answer` is at the end of these lines, in a process that has attached a recorder."""
    script = tmp_path / "worker.py"
    script.write_text(f"{WORKER}\n{dedent(lines)}\nprint(repr(answer), file=open({str(tmp_path / 'answer')!r}, 'w'))")
    subprocess.run([sys.executable, str(script)], check=True, timeout=60, env=os.environ | {"PYTHONPATH": ROOT})
    return eval((tmp_path / "answer").read_text())


def test_short_silent_runs_are_not_worth_a_row_and_others_are(tmp_path: Path) -> None:
    answer = in_a_worker(
        tmp_path,
        """
        run(lambda: time.sleep(0.02))
        short = [run(lambda: None) for _ in range(50)]
        said = run(lambda: print("hello"))
        slow = run(lambda: time.sleep(0.02))
        answer = (sum(usage is None for usage in short), said.log, slow.log, slow.duration)
        """,
    )

    assert answer[0] >= 45  # whatever else this machine had to do meanwhile
    assert answer[1:3] == ("hello\n", None)
    assert answer[3] >= 0.02


def test_cpu_time_and_peak_memory_are_the_runs_own(tmp_path: Path) -> None:
    answer = in_a_worker(
        tmp_path,
        f"""
        def greedy():
            x = b"x" * {200 * MIB}
        def parent():
            subprocess.run([sys.executable, "-c", "x = 0\\nfor n in range(3_000_000): x += n"], check=True)
        works = (lambda: time.sleep(0.3), lambda: spin(0.3), greedy, parent, lambda: time.sleep(0.02))
        runs = [run(work) for work in works]
        answer = [(usage.cpu_time, usage.peak_memory) for usage in runs]
        """,
    )

    asleep, busy, greedy, parent, quick = answer
    assert max(asleep[0], quick[0]) < 0.15
    assert busy[0] >= 0.28
    assert greedy[1] > 200 * MIB
    assert parent[0] > 0.03
    assert max(asleep[1], busy[1], quick[1]) < 150 * MIB


def test_what_a_forked_child_prints_is_no_part_of_the_run(tmp_path: Path) -> None:
    answer = in_a_worker(
        tmp_path,
        """
        def family():
            print("parent")
            pid = os.fork()
            if pid == 0:
                print("child")
                os._exit(0 if not recorder.run_log.run else 1)
            assert os.waitpid(pid, 0)[1] == 0
        answer = run(lambda: family()).log
        """,
    )

    assert answer == "parent\n"
