"""What is known of the memory of workers: from files of earlier starts, from /proc, from nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.config.settings import PoolSettings
from supervisor.domain.tenants import Need
from supervisor.supervision.device_memory import parsed
from supervisor.supervision.sizes import NAME, PERIOD, KnownSizes, RecentPeak
from supervisor.system import kernel, resources

POOL = '[pools.tag]\nhandler = "jobs:tag"\noptions = {{ model = "{}" }}\nmax_workers = {}\n'
SHARING = """
import os, sys
kept = bytearray(os.urandom(1)) * (64 << 20)
pid = os.fork()
if not pid:
    own = bytearray(b"x") * (32 << 20)
    print(flush=True)
sys.stdin.read()
"""


def pool(folder: Path, model: str = "small", most: int = 1) -> PoolSettings:
    (folder / "supervisor.toml").write_text(POOL.format(model, most))
    return load(folder / "supervisor.toml").pools["tag"]


def test_a_size_is_remembered_for_the_same_settings_only(tmp_path: Path) -> None:
    sizes = KnownSizes(tmp_path)
    sizes.learn(pool(tmp_path), Need(60, 20, 5))
    sizes.save()

    again = KnownSizes(tmp_path)

    assert again.of(pool(tmp_path, most=4)) == Need(60, 20, 5)
    assert again.of(pool(tmp_path, "large")) is None
    assert again.of(pool(tmp_path)._replace(path=(tmp_path / "elsewhere",))) is None


def test_supervisors_of_one_database_keep_each_other_s_sizes(tmp_path: Path) -> None:
    first, second = KnownSizes(tmp_path), KnownSizes(tmp_path)
    tag = pool(tmp_path)
    first.learn(tag, Need(60))
    second.learn(tag._replace(name="caption"), Need(70))
    first.save()
    second.save()

    again = KnownSizes(tmp_path)

    assert (again.of(tag), again.of(tag._replace(name="caption"))) == (Need(60), Need(70))
    assert [path.name for path in tmp_path.glob("sizes*")] == [NAME]


def test_small_changes_are_not_written(tmp_path: Path) -> None:
    sizes = KnownSizes(tmp_path)
    sizes.learn(pool(tmp_path), Need(1000))
    sizes.save()
    before = (tmp_path / NAME).read_bytes()

    sizes.learn(pool(tmp_path), Need(1040))
    sizes.save()
    assert (tmp_path / NAME).read_bytes() == before

    sizes.learn(pool(tmp_path), Need(1100))
    sizes.save()
    assert json.loads((tmp_path / NAME).read_text())["pools"]["tag"]["worker"] == 1100


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = KnownSizes(tmp_path / "nowhere")
    for size in (60, 90):
        sizes.learn(pool(tmp_path), Need(size))
        sizes.save()

    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("sizes_unknown") == 1


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


def test_the_kernel_s_account_of_its_lack_of_memory(tmp_path: Path) -> None:
    file = tmp_path / "memory.pressure"
    assert resources.pressure(file) == 0.0
    file.write_text(
        "some avg10=31.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert resources.pressure(file) == 12.5
    file.write_text("full\n")
    assert resources.pressure(file) == 0.0


def test_this_machine_has_some_memory() -> None:
    assert 1 << 26 < resources.available() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
