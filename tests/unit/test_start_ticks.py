"""What tells a process from another that has its number later."""

from __future__ import annotations

import os
import subprocess
import time

from supervisor.system import kernel
from tests.store.kit import until

TICK = 1 / os.sysconf("SC_CLK_TCK")


def test_processes_that_start_one_after_the_other_can_be_told_apart() -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        time.sleep(2 * TICK)
        with subprocess.Popen(["sleep", "60"]) as second:
            one, other = kernel.start_ticks(first.pid), kernel.start_ticks(second.pid)
            assert one is not None
            assert other is not None
            assert one < other
            assert kernel.start_ticks(first.pid) == one
            assert kernel.parent_of(first.pid) == os.getpid()
            first.kill()
            until(lambda: kernel.start_ticks(first.pid) is None)  # a zombie is nobody
            second.kill()
    assert kernel.start_ticks(first.pid) is None
    assert kernel.parent_of(first.pid) == 0
