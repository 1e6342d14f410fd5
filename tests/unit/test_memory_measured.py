"""What is known of the memory of workers: from /proc, from nvidia-smi."""

from __future__ import annotations

import os
import subprocess
import sys

from supervisor.domain.memory_shares import PERIOD, RecentPeak
from supervisor.supervision.memory_shares import parsed
from supervisor.system import kernel, resources

SHARING = """
import os, sys
kept = bytearray(os.urandom(1)) * (64 << 20)
pid = os.fork()
if not pid:
    own = bytearray(b"x") * (32 << 20)
    print(flush=True)
sys.stdin.read()
"""


def test_a_larger_value_counts_at_once() -> None:
    assert RecentPeak().seen([500], 0.0).seen([700, 600], 1.0).seen([300], 2.0).value == 700


def test_a_value_counts_for_a_period_at_least_and_is_then_forgotten() -> None:
    peak = RecentPeak().seen([700], 0.0)
    for tenth in range(1, 20):
        peak = peak.seen([300], tenth * PERIOD / 10)
        assert peak.value == 700
    assert peak.seen([300], 2 * PERIOD).value == 300


def test_while_nothing_is_seen_nothing_is_forgotten() -> None:
    peak = RecentPeak().seen([700], 0.0)

    assert peak.seen([300], 50 * PERIOD).value == 700
    assert peak.seen([300], 50 * PERIOD).seen([300], 99 * PERIOD).value == 300


def test_what_a_process_shares_with_its_children_counts_once_and_without_what_is_theirs() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SHARING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        shared = kernel.memory_shared_with_children(process.pid)
        process.stdin.close()
    assert 64 << 20 <= shared < 90 << 20


def test_lines_of_nvidia_smi_that_have_no_number_are_left_out() -> None:
    assert parsed(b"1, " + b"9" * 5000) == {}
    assert parsed(b"12, 6000\n12, 1\n13, [N/A]\n\nNo devices were found\n14, 0\n") == {12: 6001 << 20, 14: 0}


def test_this_machine_has_some_memory() -> None:
    assert 1 << 26 < resources.available() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
