"""Inserts notify only while somebody sleeps; what nobody has announced is found by the version."""

from __future__ import annotations

import select

import psycopg

from supervisor.domain.settlement import done, failed
from supervisor.store.base import Engine
from tests.store.kit import BROKEN, NOW, POLICY, Desk


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
