"""A row is deleted and another one inserted with its id, while the answer of an exchange is lost: the result of the old
one is never taken for the new one's, although tokens begin anew.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from supervisor.domain.errors import StoreUnavailable
from supervisor.domain.job import Status
from supervisor.domain.settlement import done, released
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.postgres_proxy import Proxy
from tests.store.kit import NOW, Desk


def replace(foreign: psycopg.Connection, job: int) -> None:
    foreign.execute("DELETE FROM jobs WHERE id = %s", (job,))
    foreign.execute("INSERT INTO jobs (id, type, payload, scheduled_at) VALUES (%s, 'tag', '[2]', 1)", (job,))


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_the_result_of_a_deleted_row_is_not_given_to_the_one_with_its_id(
    engine: Engine, foreign: psycopg.Connection, answered: bool, times: int
) -> None:
    with Proxy(engine.url) as proxy, closing(Desk.at(open_engine(proxy.url(engine.url)))) as desk:
        job = desk.put()
        first = desk.one(now=NOW)
        replace(foreign, job)
        ended = done(first, '"of the first"', started_at=NOW + 1)
        for attempt in range(times):
            proxy.cut_at("settle_and_claim", answered=answered)
            with pytest.raises(StoreUnavailable):
                desk.settle_and_claim(ended, want=1, now=NOW + 2 + attempt)
        exchange = desk.settle_and_claim(ended, want=1, now=NOW + 9)
        assert exchange.lost == [job]
        now = desk.job(job)
        assert (now.status, now.result) == (Status.RUNNING, None)
        [held] = desk.claims.held_by("w1")
        if exchange.claims:
            assert held == exchange.claims[0]
        else:  # it was claimed by one whose answer was lost: who holds what it does not know of gives it back
            assert exchange.doubtful
            assert desk.settle(released(held)) == []
            [held] = desk.claim(now=NOW + 10)
        assert held.payload == "[2]"
        assert desk.settle(done(held, '"of the second"')) == []
        assert desk.job(job).result == "of the second"


@pytest.mark.parametrize("answered", [True, False])
def test_a_result_whose_answer_was_lost_is_stored_once_as_ever(engine: Engine, answered: bool) -> None:
    with Proxy(engine.url) as proxy, closing(Desk.at(open_engine(proxy.url(engine.url)))) as desk:
        job, other = desk.put(), desk.put()
        first = desk.one(now=NOW)
        ended = done(first, '"kept"', started_at=NOW + 1)
        proxy.cut_at("settle_and_claim", answered=answered)
        with pytest.raises(StoreUnavailable):
            desk.settle_and_claim(ended, want=1, now=NOW + 2)
        exchange = desk.settle_and_claim(ended, want=1, now=NOW + 3)
        assert exchange.lost == ([job] if answered else [])
        assert desk.job(job).result == "kept"
        assert [held.job_id for held in desk.claims.held_by("w1")] == [other]
