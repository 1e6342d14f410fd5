"""`done = "0s"`: a job that has succeeded is deleted by the statement that settles it, and nothing else is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import Usage, done, failed
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.store.kit import BROKEN, NOW, POLICY, T0, Desk


@pytest.fixture
def desk(engine: Engine) -> Iterator[Desk]:
    desk = Desk.at(engine)
    desk.claims.close()
    desk.claims = engine.claims(keep_done=False)
    yield desk
    desk.claims.close()
    desk.close()


def ids(foreign: psycopg.Connection, table: str = "jobs", column: str = "id") -> list[int]:
    return [row[0] for row in foreign.execute(f"SELECT {column} FROM {table} ORDER BY 1")]


def test_what_has_succeeded_is_gone_and_everything_else_stays(desk: Desk, foreign: psycopg.Connection) -> None:
    good, bad, left = desk.put(), desk.put(), desk.put()
    first, second = desk.claim(want=2)
    assert desk.settle(done(first, '"result"'), failed(second, BROKEN, POLICY, chance=0.5, permanent=True)) == []
    assert ids(foreign) == [bad, left]
    assert desk.producer.job(good) is None
    assert (desk.status(bad), desk.status(left)) == (Status.FAILED, Status.PENDING)


def test_many_are_deleted_in_the_exchange_that_claims_the_next_ones(desk: Desk, foreign: psycopg.Connection) -> None:
    for _ in range(6):
        desk.put()
    held = desk.claim(want=3)
    exchange = desk.settle_and_claim(*(done(claim, None) for claim in held), want=3)
    assert exchange.lost == []
    assert ids(foreign) == [claim.job_id for claim in exchange.claims] == [4, 5, 6]


def test_what_earlier_attempts_have_left_goes_with_the_job(desk: Desk, foreign: psycopg.Connection) -> None:
    desk.put()
    desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
    assert ids(foreign, "job_errors", "job_id") == [1]
    usage = Usage(duration=1.0, log="said")
    desk.settle(done(desk.one(now=NOW + 60), None, usage=usage))
    assert [ids(foreign, table, "job_id") for table in ("job_errors", "job_runs")] == [[], []]
    assert ids(foreign) == []


def test_a_late_result_deletes_nothing(desk: Desk) -> None:
    job = desk.put()
    late = desk.one()
    desk.settle(failed(late, BROKEN, POLICY, chance=0.5))
    current = desk.one(now=NOW + 60)
    assert desk.settle(done(late, None)) == [job]
    assert desk.settle(done(current, None), owner="another") == [job]
    assert desk.status(job) is Status.RUNNING
    assert desk.settle(done(current, None)) == []
    assert desk.settle(done(current, None)) == [job]  # once


def test_the_jobs_that_it_enqueued_are_there_and_its_key_is_free(desk: Desk) -> None:
    job = desk.put(unique_key="k")
    child = NewJob("tag", "{}", unique_key="k")  # its own key, of which there is one unfinished job at most
    assert desk.settle(done(desk.one(), None, children=(child,))) == []
    assert desk.producer.job(job) is None
    assert desk.producer.put(child) == (job + 1, False)


@pytest.mark.parametrize("children", [(), (NewJob("other", "{}"),)])
def test_whoever_waits_gets_the_result(desk: Desk, engine: Engine, children: tuple[NewJob, ...]) -> None:
    job = desk.put()
    feed = engine.changes(ends=True)
    feed.version()
    feed.resume()
    desk.settle(done(desk.one(), '"result"', children=children))
    assert desk.producer.events([job])[job].result == "result"
    assert desk.maintenance.finished.prune(0, 100, NOW + 1, 0.0)[0] == 1  # later
    feed.close()


@pytest.mark.parametrize("together", [False, True])
def test_whoever_is_about_to_wait_for_a_new_job_gets_the_result(desk: Desk, together: bool) -> None:
    """The job may have succeeded before they look for the first time."""
    wanted = NewJob("tag", "{}", scheduled_at=T0, awaited=True)
    [put] = desk.producer.put_each([wanted]) if together else [desk.producer.put(wanted)]
    assert isinstance(put, tuple)
    desk.settle(done(desk.one(), '"result"'))
    assert desk.producer.events([put[0]])[put[0]].result == "result"


def test_jobs_that_nobody_waits_for_are_deleted_although_others_were_put(desk: Desk) -> None:
    put = desk.producer.put(NewJob("tag", "{}", scheduled_at=T0))
    desk.settle(done(desk.one(), '"result"'))
    assert desk.producer.events([put[0]]) == {}


def test_a_user_who_may_not_say_that_it_waits_enqueues_all_the_same(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    role = f"only_enqueues_{os.getpid()}"
    foreign.execute(
        f"CREATE ROLE {role}; GRANT SELECT, INSERT ON jobs, job_meta TO {role};"
        f" GRANT USAGE ON SEQUENCE jobs_id_seq TO {role}; GRANT SELECT ON SEQUENCE job_sleepers, job_watchers TO {role}"
    )
    try:
        with closing(open_engine(f"{engine.url}?options=-crole%3D{role}").producer()) as producer:
            assert producer.put(NewJob("tag", "{}", awaited=True)) == (1, True)
    finally:
        foreign.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_job_to_which_another_table_refers_is_kept(desk: Desk, foreign: psycopg.Connection) -> None:
    foreign.execute("CREATE TABLE pictures (job bigint REFERENCES jobs (id))")
    kept, _ = desk.put(), desk.put()
    foreign.execute("INSERT INTO pictures VALUES (%s)", [kept])
    assert desk.settle(*(done(claim, None) for claim in desk.claim(want=2))) == []
    assert desk.status(kept) is Status.DONE
