"""A worker claims only while its supervisor may, and registers again when others may have taken that for dead."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor.domain.settlement import done
from supervisor.system.scoreboard import ClaimGate, boot_time
from supervisor.worker.exchange import Exchange
from tests.store.kit import LOCK, NOW, Desk, worker_record

NOBODY: Any = MagicMock()  # nothing is asked of it here


@pytest.fixture
def gate() -> ClaimGate:
    return ClaimGate()


@pytest.fixture
def store(desk: Desk, gate: ClaimGate) -> Iterator[Exchange]:
    pool: Any = SimpleNamespace(
        types=("tag", "mail"), capabilities=(), min_priority=None, lock_time=LOCK, heartbeat_timeout=60.0, policy=NOBODY
    )
    store = Exchange(desk.engine, worker_record("w1"), pool, NOBODY, gate, NOBODY, NOBODY, NOBODY)
    store.open()
    yield store
    store.close()


def claims(store: Exchange, *settlements: Any) -> list[int]:
    for settlement in settlements:
        store.held.ended(settlement)
    return [claim.job_id for claim in store.turn(1)]


def test_it_claims_nothing_while_its_host_is_drained(desk: Desk, store: Exchange, gate: ClaimGate) -> None:
    job = desk.put()
    gate.drained = 1
    assert claims(store) == []
    gate.drained = 0
    assert claims(store) == [job]


def test_it_claims_nothing_without_a_lease_and_settles_all_the_same(
    desk: Desk, store: Exchange, gate: ClaimGate
) -> None:
    gate.needed = 1
    gate.renewed(boot_time() + 60, 0.0, again=True)
    first, second = desk.put(), desk.put()
    [claim] = store.turn(1)
    gate.renewed(boot_time() - 0.001, 0.0, again=False)
    assert claims(store, done(claim, None)) == []
    assert desk.job(first).status.finished
    gate.renewed(boot_time() + 60, 0.0, again=False)
    assert claims(store) == [second]


def test_it_registers_again_before_it_claims_again(desk: Desk, store: Exchange, gate: ClaimGate) -> None:
    job = desk.put()
    desk.maintenance.locks.settle_dead("w1", [], NOW)  # another host has recovered it
    assert desk.maintenance.registry.worker("w1") is None
    gate.renewed(boot_time() + 60, 0.0, again=True)
    assert claims(store) == [job]
    assert desk.maintenance.registry.worker("w1") is not None
