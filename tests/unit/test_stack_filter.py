"""Stacks that a worker was asked for do not go on to the service's log; all else does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.supervision.worker_output import StackFilter

PROGRAM = """
import faulthandler, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def deep(n): return deep(n - 1) if n else faulthandler.dump_traceback(all_threads=True)
print("before", file=sys.stderr, flush=True)
deep(150)
print("after", end="", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def dump() -> bytes:
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True).stderr


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_stacks_are_left_out_however_they_arrive(dump: bytes, size: int) -> None:
    assert dump.count(b"most recent call first") == 2
    stacks = StackFilter()

    passed = b"".join(stacks.pass_on(dump[at : at + size]) for at in range(0, len(dump), size))

    assert passed + stacks.rest() == b"before\nafter"


TRACEBACK = b'Traceback (most recent call last):\n  File "jobs.py", line 3, in work\n\n  ...\nValueError\n'


@given(st.binary(max_size=200) | st.just(TRACEBACK), st.integers(1, 50))
def test_all_else_goes_on_unchanged(data: bytes, size: int) -> None:
    stacks = StackFilter()

    passed = b"".join(stacks.pass_on(data[at : at + size]) for at in range(0, len(data), size))

    assert passed + stacks.rest() == data
