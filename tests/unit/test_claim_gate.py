"""When workers may claim, and what time it is for them."""

from __future__ import annotations

import time

import pytest

from supervisor.system.scoreboard import ClaimGate, boot_time


@pytest.fixture
def gate() -> ClaimGate:
    return ClaimGate()


def test_without_a_lease_to_renew_it_is_open_unless_drained(gate: ClaimGate) -> None:
    assert gate.is_open()
    assert not gate.lapsed
    assert gate.clock is time.time
    gate.drained = 1
    assert not gate.is_open()
    gate.drained = 0
    assert gate.is_open()


def test_with_one_it_is_open_while_that_certainly_holds(gate: ClaimGate) -> None:
    gate.needed = 1
    assert gate.lapsed
    assert not gate.is_open()
    gate.renewed(boot_time() + 60, 0.0, again=True)
    assert gate.is_open()
    assert gate.generation == 1
    gate.drained = 1
    assert not gate.is_open()
    assert not gate.lapsed
    gate.drained = 0
    gate.renewed(boot_time() - 0.001, 0.0, again=False)
    assert gate.lapsed
    assert not gate.is_open()
    assert gate.generation == 1


def test_the_time_is_the_servers_as_soon_as_it_is_known(gate: ClaimGate) -> None:
    assert abs(gate.now() - time.time()) < 60
    gate.needed = 1
    gate.renewed(0.0, 1_000_000.0 - boot_time(), again=True)
    assert 1_000_000.0 <= gate.now() < 1_000_060.0
    assert gate.clock() == pytest.approx(gate.now(), abs=60)
