"""What the kernel tells of our control group's memory, on machines and in containers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.system import resources
from supervisor.system.resources import OomCounter

V2 = "30 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER = "36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n"


class Machine:
    """A /proc and a /sys of a test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 0\n")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("mounts", "groups", "counter"),
    [
        (V2.format(root="/", point="/sys/fs/cgroup"), "0::/app.service\n", "sys/fs/cgroup/app.service/memory.events"),
        (V2.format(root="/", point="/sys/fs/cgroup"), "0::/\n", "sys/fs/cgroup/memory.events"),
        (V2.format(root="/docker/ab", point="/cg"), "0::/docker/ab/inner\n", "cg/inner/memory.events"),
        (OTHER, "6:devices:/\n4:memory:/app\n", "proc/vmstat"),  # version 1
        ("", "", "proc/vmstat"),
    ],
)
def test_the_nearest_count_is_read(machine: Machine, mounts: str, groups: str, counter: str) -> None:
    machine.write("proc/self/mountinfo", mounts)
    machine.write("proc/self/cgroup", groups)
    file = machine.write(counter, "under_oom 0\noom_kill 3\n")
    killer = OomCounter(machine.root)
    assert not killer.struck()
    file.write_text("under_oom 0\noom_kill 4\n")
    assert killer.struck()


def test_a_kill_is_news_for_two_looks(machine: Machine) -> None:
    killer = OomCounter(machine.root)
    machine.write("proc/vmstat", "oom_kill 1\n")
    killer.look()
    assert killer.struck()
    killer.look()
    assert not killer.struck()


def test_what_was_before_can_be_forgotten(machine: Machine) -> None:
    killer = OomCounter(machine.root)
    machine.write("proc/vmstat", "oom_kill 1\n")
    killer.forget()
    assert not killer.struck()
    machine.write("proc/vmstat", "oom_kill 2\n")
    assert killer.struck()


def test_without_any_count_nobody_is_accused(tmp_path: Path) -> None:
    assert not OomCounter(tmp_path / "nothing").struck()


@pytest.mark.fault(30)
def test_a_count_that_cannot_be_read_for_a_while_is_no_kill_afterwards(machine: Machine) -> None:
    file = machine.write("proc/vmstat", "oom_kill 3\n")
    killer = OomCounter(machine.root)
    file.unlink()
    killer.look()
    killer.look()
    assert not killer.struck()
    machine.write("proc/vmstat", "oom_kill 3\n")
    assert not killer.struck()
    machine.write("proc/vmstat", "oom_kill 4\n")
    assert killer.struck()


@pytest.mark.parametrize(
    ("mounts", "groups", "limit"),
    [
        (V2.format(root="/", point="/sys/fs/cgroup"), "0::/app/inner\n", "sys/fs/cgroup/app/inner/memory.max"),
        (V2.format(root="/", point="/sys/fs/cgroup"), "0::/app/inner\n", "sys/fs/cgroup/app/memory.max"),
        (V2.format(root="/docker/ab", point="/cg"), "0::/docker/ab\n", "cg/memory.max"),
        # The path may be the host's; what is mounted is the container's own.
        (V2.format(root="/", point="/cg"), "0::/docker/ab\n", "cg/memory.max"),
        (V2.format(root="/", point="/cg"), "0::/../elsewhere\n", "cg/memory.max"),
    ],
)
def test_the_limits_of_our_group_and_of_those_around_it_count(
    machine: Machine, mounts: str, groups: str, limit: str
) -> None:
    machine.write("proc/self/mountinfo", mounts)
    machine.write("proc/self/cgroup", groups)
    whole = resources.available(machine.root)
    for text in ("max\n", "of no use"):
        machine.write(limit, text)
        assert resources.available(machine.root) == whole
    machine.write(limit, "1048576\n")
    assert resources.available(machine.root) == 1 << 20
    machine.write("proc/self/cgroup", "nonsense")
    machine.write("proc/self/mountinfo", "nonsense")
    assert resources.available(machine.root) == whole
