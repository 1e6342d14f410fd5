"""Inserts notify only while somebody sleeps; what nobody has announced is found by the version."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import closing

import psycopg

from supervisor.domain.settlement import done, failed
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.postgres_server import Server
from tests.store.kit import BROKEN, NOW, POLICY, Desk, supervisor_record


def hint(feed: object, seconds: float) -> bool:
    readable, _, _ = select.select([feed.fileno()], [], [], seconds)  # type: ignore[attr-defined]
    return bool(readable) and feed.drain()  # type: ignore[attr-defined]


def test_an_insert_by_any_program_wakes_whoever_sleeps(desk: Desk, engine: Engine, foreign: psycopg.Connection) -> None:
    feed = engine.changes()
    feed.version()
    assert feed.resume() is True
    assert feed.resume() is False
    foreign.execute("INSERT INTO jobs (type) VALUES ('tag')")
    assert hint(feed, 20.0)
    assert not hint(feed, 0.0)
    desk.operations.controls.pause("tag", NOW)
    assert hint(feed, 20.0)
    feed.close()


def test_an_end_wakes_whoever_waits_for_it(desk: Desk, engine: Engine) -> None:
    desk.put()
    desk.put()
    feed = engine.changes(ends=True)
    feed.version()
    feed.resume()
    desk.settle(done(desk.one(), None))
    assert hint(feed, 20.0)
    assert not hint(feed, 0.0)
    desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
    assert hint(feed, 20.0)
    feed.close()


def test_while_nobody_sleeps_nothing_is_announced(desk: Desk, engine: Engine, foreign: psycopg.Connection) -> None:
    feed = engine.changes()
    before = feed.version()
    desk.put()
    assert not hint(feed, 0.1)
    assert feed.version() != before
    feed.close()


def test_a_listener_whose_session_has_ended_listens_again(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    feed = engine.changes()
    feed.version()
    feed.resume()
    foreign.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    try:
        feed.version()
    except Exception:
        feed.version()
    feed.pause()
    feed.resume()
    desk.put()
    assert hint(feed, 20.0)
    feed.close()


def test_neither_a_lease_that_is_renewed_nor_a_wish_for_notifications_is_news(
    own_postgres: Callable[..., Server],
) -> None:
    engine = open_engine(own_postgres().fresh_database())
    engine.database.migrate()
    with closing(engine.maintenance()) as maintenance, closing(engine.changes()) as feed:
        for one in ("here", "far"):
            maintenance.registry.register(supervisor_record(one, engine, "/nowhere"))

        def quiet() -> bool:
            before = feed.version()
            maintenance.registry.renew("here", "what it posts")
            maintenance.registry.renew("far", None)
            feed.pause()
            feed.resume()
            return bool(feed.version() == before)

        assert any(quiet() for _ in range(5))  # the server itself may write something meanwhile
        before = feed.version()
        maintenance.controls.drain("far", NOW)
        assert feed.version() != before


def test_among_several_who_sleep_one_wishes_for_notifications_in_time(own_postgres: Callable[..., Server]) -> None:
    engine = open_engine(own_postgres().fresh_database())
    engine.database.migrate()
    with closing(engine.changes()) as one, closing(engine.changes()) as other:
        one.version()
        one.resume()

        def quiet() -> bool:
            before = one.version()
            other.pause()
            other.resume()
            return bool(one.version() == before)

        assert any(quiet() for _ in range(5))  # the server itself may write something meanwhile
        with psycopg.connect(engine.url, autocommit=True) as foreign:
            foreign.execute("SELECT setval('job_sleepers', 0)")
            other.pause()
            other.resume()
            [(left,)] = foreign.execute("SELECT last_value - extract(epoch FROM clock_timestamp()) FROM job_sleepers")
            assert left > 5


def test_what_is_not_committed_is_no_news_and_a_lease_is_none_when_it_is(
    own_postgres: Callable[..., Server],
) -> None:
    engine = open_engine(own_postgres().fresh_database())
    engine.database.migrate()
    with (
        closing(engine.maintenance()) as maintenance,
        closing(engine.changes()) as feed,
        psycopg.connect(engine.url) as slow,
    ):
        for one in ("near", "far"):
            maintenance.registry.register(supervisor_record(one, engine, "/nowhere"))

        def news(statement: str) -> tuple[bool, bool]:
            """Whether there is some while its transaction runs beside a later one, and when it has ended."""
            before = feed.version()
            slow.execute(statement)
            maintenance.registry.renew("near", None)
            during = feed.version()
            slow.commit()
            return during != before, feed.version() != during

        lease = "UPDATE job_supervisors SET lease_until = lease_until + 1 WHERE id = 'far'"
        assert any(news(lease) == (False, False) for _ in range(5))  # the server itself may write something meanwhile
        assert any(news("INSERT INTO jobs (type) VALUES ('tag')") == (False, True) for _ in range(5))
