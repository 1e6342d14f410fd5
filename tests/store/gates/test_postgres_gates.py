"""Whatever else the gates promise, on PostgreSQL, where only the maintainer and workers admit."""

from __future__ import annotations

import contextlib
import time

import pytest

from supervisor.domain.limits import interval_of
from supervisor.domain.settlement import done
from supervisor.store.base import Engine
from tests.store.gates.conftest import Gates, connect, execute


@pytest.fixture(params=["postgres"])
def engine(engine: Engine) -> Engine:
    return engine


@pytest.mark.parametrize(("rate", "most"), [("200/s", 205), ("2000/s", 2025)])
def test_a_high_rate_is_kept(gates: Gates, rate: str, most: int) -> None:
    gates.limit(interval=interval_of(rate))
    gates.put(2 * most)
    begun, count = time.time(), 0
    while time.time() < begun + 1.0:
        claims = gates.claim(50)
        count += len(claims)
        gates.settle(*(done(claim, None) for claim in claims))
        gates.tend()
    assert most * 0.1 < count <= most


def test_who_deletes_the_next_ones_too_lets_those_after_them_pass(gates: Gates) -> None:
    gates.limit("mail", max_running=1)
    keyed, typed = gates.put(3, concurrency_key="a"), gates.put(3, "mail")
    gates.sql(f"DELETE FROM jobs WHERE id IN ({keyed[0]}, {keyed[1]}, {typed[0]}, {typed[1]})")
    assert gates.pending() == keyed[2:]
    assert gates.pending("mail") == typed[2:]


def test_what_is_held_is_not_read_to_find_the_first(gates: Gates) -> None:
    gates.limit(max_running=1)
    gates.put(2000)
    execute(gates._raw, "BEGIN")
    execute(gates._raw, "UPDATE jobs SET status = 'done', claim_token = claim_token + 1 WHERE id = 1")
    execute(gates._raw, "SELECT supervisor_settled_v1(ARRAY[1], NULL, NULL, NULL, NULL)")
    [(read,)] = execute(gates._raw, "SELECT pg_stat_get_xact_tuples_returned('jobs_at_gate'::regclass)")
    execute(gates._raw, "COMMIT")
    assert gates.pending() == [2]
    assert read < 100


def test_many_of_one_type_keep_no_other_waiting(gates: Gates) -> None:
    gates.limit(max_running=1)
    execute(gates._raw, "INSERT INTO jobs (type) SELECT 'tag' FROM generate_series(1, 1500)")
    execute(gates._raw, "INSERT INTO jobs (type, concurrency_key) VALUES ('other', 'a')")
    gates.desk.maintenance.gates.admit_due(time.time())
    assert len(gates.pending("other")) == 1


def test_rows_that_somebody_has_locked_hold_up_nothing_else(gates: Gates) -> None:
    gates.limit(max_running=1)
    gates.put(700)
    first, second = gates.put(2, "other", concurrency_key="a")
    execute(gates._raw, "UPDATE jobs SET status = 'cancelled' WHERE type = 'tag'")
    with contextlib.closing(connect(gates.url)) as application:
        execute(application, "BEGIN")
        execute(application, "SELECT 1 FROM jobs WHERE type = 'tag' FOR UPDATE")
        execute(gates._raw, f"UPDATE jobs SET status = 'cancelled' WHERE id = {first}")
        gates.desk.maintenance.gates.admit_due(time.time())
        assert gates.pending("other") == [second]
