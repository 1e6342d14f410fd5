"""When a worker looks at its own memory, and what it takes for too much."""

from __future__ import annotations

import pytest

from supervisor.system import kernel
from supervisor.system.slot import RecycleReason
from supervisor.worker.fitness import MemoryWatch

MIB = 1 << 20


class Memory:
    """What the kernel would say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident = self.unique = 0
        self.looks: list[str] = []
        monkeypatch.setattr(kernel, "resident_of_family", lambda pid: self._look("quick", self.resident))
        monkeypatch.setattr(kernel, "memory_of_family", lambda pid: self._look("close", self.unique))

    def _look(self, how: str, value: int) -> int:
        self.looks.append(how)
        return value * MIB


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def test_without_a_limit_nobody_looks(memory: Memory) -> None:
    assert not MemoryWatch(None).beyond_limit(0.0, 60.0)
    assert memory.looks == []


def test_only_what_is_not_shared_counts(memory: Memory) -> None:
    growth = MemoryWatch(100 * MIB)
    memory.resident, memory.unique = 500, 90
    assert not growth.beyond_limit(0.0, 10.0)
    memory.resident, memory.unique = 511, 101
    assert growth.beyond_limit(10.0, 11.5)


def test_a_close_look_is_taken_once_a_second_and_only_above_the_limit(memory: Memory) -> None:
    growth = MemoryWatch(100 * MIB)
    memory.resident, memory.unique = 99, 99
    growth.beyond_limit(0.0, 10.0)
    memory.resident, memory.unique = 500, 60
    growth.beyond_limit(10.0, 10.1)
    memory.unique = 101
    assert not growth.beyond_limit(10.1, 11.0)
    assert memory.looks == ["quick", "quick", "close", "quick"]
    assert growth.beyond_limit(11.0, 11.2)


def test_quick_jobs_are_not_held_up(memory: Memory) -> None:
    growth = MemoryWatch(100 * MIB)
    for number in range(100):
        growth.beyond_limit(10.0 + number / 1000, 10.0 + (number + 1) / 1000)
    assert memory.looks == ["quick"]


def test_it_says_when_it_is_so_far_beyond_that_it_cannot_wait_for_a_successor(memory: Memory) -> None:
    growth = MemoryWatch(100 * MIB)
    memory.resident = memory.unique = 105
    assert growth.beyond_limit(0.0, 10.0)
    assert growth.reason is RecycleReason.LARGE
    memory.resident = memory.unique = 111
    assert growth.beyond_limit(10.0, 11.1)
    assert growth.reason is RecycleReason.FAR_LARGE
