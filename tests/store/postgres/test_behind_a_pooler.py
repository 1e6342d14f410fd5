"""Behind PgBouncer in transaction mode: each transaction may have another session, and nothing relies on one."""

from __future__ import annotations

import contextlib
import re
import select
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from supervisor import Queue
from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done, failed
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.store.postgres.connection import Connection
from tests.postgres_pooler import Pooler, pooler
from tests.postgres_server import Databases, NoServerError
from tests.store.kit import BROKEN, LOCK, NOW, POLICY, Desk, until, worker_record


@contextlib.contextmanager
def pooled(direct: str, **settings: object) -> Iterator[Pooler]:
    """Skips the test where there is no pooler."""
    try:
        with pooler(direct, **settings) as one:
            yield one
    except NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def bouncer(postgres: Databases) -> Iterator[Pooler]:
    with pooled(postgres.fresh_database()) as one:
        yield one


@pytest.fixture
def engine(bouncer: Pooler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return open_engine(bouncer.url)


@pytest.fixture
def direct(desk: Desk, bouncer: Pooler) -> Iterator[psycopg.Connection]:
    with psycopg.connect(bouncer.direct, autocommit=True) as connection:
        yield connection


def sessions(bouncer: Pooler, setting: str) -> set[str]:
    """What the pooler's sessions have for a setting outside of our transactions."""
    with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as one:
        found = [one.execute("SELECT current_setting(%s)", [setting]).fetchone() for _ in range(12)]
    return {row[0] for row in found if row}


def test_it_is_recognized_and_a_direct_connection_is_not(engine: Engine, bouncer: Pooler) -> None:
    for url, expected in ((bouncer.url, True), (bouncer.direct, False)):
        connection = Connection(open_engine(url)._address)  # type: ignore[attr-defined]
        assert connection.pooled is expected
        connection.close()


def test_no_setting_of_ours_stays_in_a_session_that_others_use(desk: Desk, bouncer: Pooler) -> None:
    for _ in range(10):
        desk.put()
        desk.settle(done(desk.one(), None))
    assert sessions(bouncer, "synchronous_commit") == {"on"}  # a worker's are `off`: an enqueue with that could be lost
    assert sessions(bouncer, "lock_timeout") == {"0"}
    assert sessions(bouncer, "statement_timeout") == {"0"}
    with psycopg.connect(bouncer.direct) as one:
        locks = one.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        ).fetchone()
    assert locks == (0,)


def test_an_enqueue_is_durable_whatever_the_session_was_told(desk: Desk, bouncer: Pooler) -> None:
    with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as careless:
        for _ in range(12):
            careless.execute("SET synchronous_commit = off")
    with desk.producer._connection.write() as raw:  # type: ignore[attr-defined]
        assert raw.execute("SELECT current_setting('synchronous_commit')").fetchone() == ("on",)


def test_nothing_is_prepared_where_others_would_meet_it(desk: Desk, direct: psycopg.Connection) -> None:
    """PgBouncer before 1.21 knows no prepared statements: another session has no such statement."""
    for _ in range(12):
        desk.put()
        assert desk.producer.job(1)
        desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
    for _ in range(12):
        desk.producer.enqueue([NewJob("many", "{}")] * 1500)  # copied
    assert direct.execute("SELECT count(*) FROM jobs WHERE type = 'many'").fetchone() == (18000,)


def test_a_row_that_another_holds_is_waited_for_only_so_long(engine: Engine, direct: psycopg.Connection) -> None:
    claims = engine.claims()
    claims.be_patient(0.2)
    desk = Desk.at(engine)
    desk.put()
    desk.claims = claims
    claim = desk.one()
    with direct.transaction():
        direct.execute("SELECT FROM jobs FOR UPDATE")
        with pytest.raises(StoreBusy):
            desk.settle(done(claim, None))
        with pytest.raises(StoreBusy):
            desk.settle(failed(claim, BROKEN, POLICY, chance=0.5))
    assert desk.settle(done(claim, None)) == []
    claims.close()
    desk.close()


def test_what_a_dead_worker_claims_afterwards_goes_back_uncharged(desk: Desk, direct: psycopg.Connection) -> None:
    """Its statement was on its way through the pooler when the worker died."""
    desk.claims.register(worker_record("w1"))
    job = desk.put()
    locks = desk.maintenance.locks
    assert locks.held_by("w1") == []
    late = desk.one(owner="w1")  # between the two calls of whoever settles the death
    assert late.job_id == job
    assert locks.settle_dead("w1", [], NOW) == 0
    found = desk.job(job)
    assert (found.status, found.attempts, found.crashes) == (Status.PENDING, 0, 0)
    assert desk.claim(owner="w1") == []  # it is not registered any more


def test_a_death_is_settled_only_when_no_claim_of_the_worker_is_on_its_way(
    desk: Desk, direct: psycopg.Connection
) -> None:
    desk.claims.register(worker_record("w1"))
    desk.put()
    with direct.transaction():  # a claim in the middle, as the function begins it
        direct.execute(
            "SELECT FROM supervisor_settle_and_claim_v1('w1', 'w1', true, %s, %s, '{}', '{}', '{}', '{}', '{}',"
            " '{tag}', '', 1, NULL, NULL, NULL, NULL, NULL, 1000)",
            [NOW, NOW + LOCK],
        )
        with pytest.raises(StoreBusy):
            desk.maintenance.locks.settle_dead("w1", [], NOW)
    assert desk.maintenance.locks.settle_dead("w1", [], NOW) == 0
    assert desk.maintenance.locks.held_by("w1") == []


def test_without_a_direct_connection_the_poll_finds_what_is_committed(desk: Desk, engine: Engine) -> None:
    feed = engine.changes()
    before = feed.version()
    assert feed.resume() is False
    assert "a pooler passes no notifications on" in feed.problem
    desk.put()
    assert feed.version() != before
    assert not feed.drain()
    feed.close()


def test_nobody_is_told_to_notify_whom_nobody_would_hear(
    desk: Desk, engine: Engine, direct: psycopg.Connection
) -> None:
    feed = engine.changes()
    feed.version()
    feed.resume()
    assert direct.execute("SELECT last_value FROM job_sleepers").fetchone() == (0,)
    feed.close()


def test_a_direct_connection_of_its_own_hears_at_once(desk: Desk, bouncer: Pooler) -> None:
    feed = open_engine(bouncer.url, bouncer.direct).changes()
    before = feed.version()
    assert feed.resume() is True
    desk.put()
    assert select.select([feed.fileno()], [], [], 20.0)[0]
    assert feed.drain()
    assert feed.version() != before
    assert feed.problem == ""
    feed.close()


@pytest.mark.parametrize("where", ["postgresql://127.0.0.1:1/nowhere", "pooler"])
def test_one_that_cannot_be_used_costs_only_the_hints(desk: Desk, bouncer: Pooler, where: str) -> None:
    feed = open_engine(bouncer.url, bouncer.url if where == "pooler" else where).changes()
    before = feed.version()
    feed.resume()
    desk.put()
    assert feed.version() != before
    assert feed.problem
    feed.close()


def test_a_listener_of_its_own_whose_session_has_ended_listens_again(
    desk: Desk, bouncer: Pooler, direct: psycopg.Connection
) -> None:
    feed = open_engine(bouncer.url, bouncer.direct).changes()
    feed.version()
    feed.resume()
    direct.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database()"
    )
    until(feed.drain)  # it has heard of the end
    feed.version()
    feed.resume()
    desk.put()
    assert select.select([feed.fileno()], [], [], 20.0)[0]
    assert feed.drain()
    feed.close()


def refused_or_kept(url: str) -> str:
    """The error, or "" if every session has the search path: PgBouncer 1.20 passes on what the server reports."""
    connection = Connection(open_engine(f"{url}?options=-csearch_path%3Dours")._address)  # type: ignore[attr-defined]
    try:
        connection.check()
    except StoreError as error:
        return str(error)
    assert {connection.row("SHOW search_path") for _ in range(8)} == {("ours",)}
    connection.close()
    return ""


def test_a_search_path_that_the_pooler_drops_is_refused(postgres: Databases) -> None:
    with pooled(postgres.fresh_database(), ignore_startup_parameters="options") as one:
        refused = refused_or_kept(one.url)
    assert not refused or "set the search path of the role: ALTER ROLE … SET search_path = ours" in refused


def test_options_that_the_pooler_refuses_are_named(bouncer: Pooler) -> None:
    refused = refused_or_kept(bouncer.url)
    assert not refused or re.search(r"leave out options=.* ALTER ROLE", refused)


def test_jobs_of_a_queue_are_found_and_awaited(engine: Engine, bouncer: Pooler) -> None:
    with Queue(bouncer.url) as polling, Queue(bouncer.url, listen_database=bouncer.direct) as hearing:
        ids = polling.enqueue_many("tag", [{}] * 3)
        desk = Desk.at(engine)
        desk.settle(*(done(claim, '"seen"') for claim in desk.claim(want=3, now=time.time() + 60)))
        for queue in (polling, hearing):
            assert [queue.wait(job, timeout=20).result for job in ids] == ["seen"] * 3
        desk.close()
