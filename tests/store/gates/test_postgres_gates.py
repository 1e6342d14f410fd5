"""Whatever else the gates promise, on PostgreSQL, where only the maintainer and workers admit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

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
    assert 0 < count <= most


def test_who_deletes_the_next_ones_too_lets_those_after_them_pass(gates: Gates) -> None:
    gates.limit("mail", max_running=1)
    keyed, typed = gates.put(3, concurrency_key="a"), gates.put(3, "mail")
    gates.sql(f"DELETE FROM jobs WHERE id IN ({keyed[0]}, {keyed[1]}, {typed[0]}, {typed[1]})")
    assert gates.pending() == keyed[2:]
    assert gates.pending("mail") == typed[2:]


def test_what_is_held_is_not_read_to_find_the_first(gates: Gates) -> None:
    gates.limit("other", interval=1.0)
    gates.limit(max_running=1)
    gates.put(2000)
    execute(gates._raw, "BEGIN")
    execute(gates._raw, "UPDATE jobs SET status = 'done', claim_token = claim_token + 1 WHERE id = 1")
    execute(gates._raw, "SELECT supervisor_settled_v1(ARRAY[1], NULL, NULL, ARRAY['other'], NULL)")
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


@pytest.fixture
def rule(gates: Gates) -> Iterator[Callable[[str, str], None]]:
    """Makes a rule of the application, which refuses what has this condition."""

    def make(event: str, condition: str) -> None:
        execute(
            gates._raw,
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
            f"CREATE TRIGGER refuse BEFORE {event} ON jobs FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()",
        )

    yield make
    execute(gates._raw, "DROP FUNCTION IF EXISTS refuse CASCADE")


@pytest.mark.parametrize("by_sql", [False, True])
def test_a_refused_job_after_a_batch_stops_nobody(gates: Gates, rule: Callable[..., None], *, by_sql: bool) -> None:
    rule("INSERT", "NEW.type = 'sum'")
    gates.sql("INSERT INTO job_batches (id, type, closed) VALUES (8, 'sum', 1), (9, 'report', 1)")
    jobs = gates.one(batch=8), gates.one(batch=9)
    if by_sql:
        gates.sql(f"UPDATE jobs SET status = 'cancelled' WHERE id IN {jobs}")
    else:
        gates.settle(*(done(claim, None) for claim in gates.claim(2)))
    assert gates.status(*jobs) == ["cancelled" if by_sql else "done"] * 2
    assert len(gates.pending("report")) == 1
    gates.sql("DROP FUNCTION refuse CASCADE")
    gates.desk.maintenance.gates.sweep(time.time())
    assert (len(gates.pending("sum")), len(gates.pending("report"))) == (1, 1)


def test_a_job_that_may_not_become_pending_is_quarantined_and_stops_nobody(
    gates: Gates, rule: Callable[..., None]
) -> None:
    gates.limit(max_running=1)
    first, bad, good = gates.put(3)
    [follower] = gates.sql("INSERT INTO jobs (type, status, hold) VALUES ('other', 'held', 'after') RETURNING id")[0]
    gates.sql(f"INSERT INTO job_after (after_id, job_id) VALUES ({first}, {follower})")
    rule("UPDATE", f"NEW.status = 'pending' AND NEW.id IN ({bad}, {follower})")
    gates.work(first)  # whose success is kept
    assert gates.status(first, bad, good, follower) == ["done", "quarantined", "pending", "quarantined"]
    assert gates.desk.job(bad).last_error == "the database refuses this row: no"
