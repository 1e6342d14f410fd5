"""When workers may claim, and what time it is for them."""

from __future__ import annotations

import time

import pytest

from supervisor.system.scoreboard import GATE_BYTES, MOST_PAUSED, ClaimGate, boot_time


@pytest.fixture
def gate() -> ClaimGate:
    return ClaimGate(memoryview(bytearray(GATE_BYTES)))


def test_without_a_lease_to_renew_it_is_open_unless_drained(gate: ClaimGate) -> None:
    assert gate.is_open()
    assert not gate.lapsed
    assert gate.clock is time.time
    gate.drain(True)
    assert not gate.is_open()
    gate.drain(False)
    assert gate.is_open()


def test_with_one_it_is_open_while_that_certainly_holds(gate: ClaimGate) -> None:
    gate.need_lease()
    assert gate.lapsed
    assert not gate.is_open()
    gate.renewed(boot_time() + 60, 0.0, again=True)
    assert gate.is_open()
    assert gate.generation == 1
    gate.drain(True)
    assert not gate.is_open()
    assert not gate.lapsed
    gate.drain(False)
    gate.renewed(boot_time() - 0.001, 0.0, again=False)
    assert gate.lapsed
    assert not gate.is_open()
    assert gate.generation == 1


def test_the_time_is_the_servers_as_soon_as_it_is_known(gate: ClaimGate) -> None:
    assert abs(gate.now() - time.time()) < 60
    gate.need_lease()
    gate.renewed(0.0, 1_000_000.0 - boot_time(), again=True)
    assert 1_000_000.0 <= gate.now() < 1_000_060.0
    assert gate.clock() == pytest.approx(gate.now(), abs=60)


def test_types_that_are_paused_on_the_host_are_left_out(gate: ClaimGate) -> None:
    types = ("mail", "tag", "caf\u00e9", "bad\udcff")
    assert gate.unpaused(types) is types
    gate.pause({"tag", "bad\udcff"})
    assert gate.unpaused(types) == ("mail", "caf\u00e9")
    gate.pause({"mail"})
    assert gate.unpaused(types) == ("tag", "caf\u00e9", "bad\udcff")
    gate.pause(())
    assert gate.unpaused(types) is types


def test_another_process_sees_each_change_as_a_whole(gate: ClaimGate) -> None:
    shared = memoryview(bytearray(GATE_BYTES))
    writer, reader = ClaimGate(shared), ClaimGate(shared.toreadonly())
    many = tuple(f"type-{number}" for number in range(MOST_PAUSED + 1))
    for paused in (many[:1], many[:MOST_PAUSED], many[3:5], many):
        writer.pause(paused)
        assert len(reader.unpaused(many)) == len(many) - min(len(paused), MOST_PAUSED)
