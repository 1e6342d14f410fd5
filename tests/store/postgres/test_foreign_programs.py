"""Programs that know nothing of claims work on our table with plain SQL, at the same time as our workers, in sessions
with settings of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from supervisor import Queue
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Status
from supervisor.domain.settlement import done, released
from supervisor.store.base import Engine, JobSelector
from supervisor.store.moving import MOVED_TO
from tests.docs.markdown import ROOT, blocks
from tests.store.kit import LOCK, NOW, Desk, until, worker_record
from tests.store.postgres.meanwhile import Meanwhile

# A poller such as there are many. Its UPDATE may wait for ours, and then goes on with what the row is by then.
CLAIM = "UPDATE jobs SET status = 'running', attempts = attempts + 1 WHERE id = {} RETURNING id"
ONE = CLAIM.format("(SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT 1)")
RESET = "UPDATE jobs SET status = 'pending' WHERE status = 'running'"
FOREIGN = ("foreign", 2, 8)  # its owner, attempts and token
DECOYS = ("jobs", "job_meta", "job_sleepers", "job_timeline")


def late(url: str, watch: psycopg.Connection, statement: str) -> Meanwhile:
    def run() -> list[tuple[object, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    return Meanwhile(watch, run)


@pytest.fixture
def held(engine: Engine, desk: Desk) -> Iterator[psycopg.Connection]:
    """A transaction that stays open until a test commits it."""
    with closing(psycopg.connect(engine.url)) as connection:
        yield connection


def ours(held: psycopg.Connection, job: int) -> None:
    """Claims as the function does, in a transaction that stays open."""
    held.execute(
        "UPDATE jobs SET status = 'running', locked_by = 'w1', claim_token = claim_token + 1, attempts = attempts + 1,"
        " lock_expires_at = extract(epoch FROM now()) + 60 WHERE id = %s",
        (job,),
    )


class TestAtTheSameTime:
    @pytest.mark.parametrize(
        ("change", "gets", "left"),
        [
            ("", False, (Status.RUNNING, "w1", 1, 1)),
            *(
                (f"UPDATE jobs SET status = '{status}', locked_by = NULL", False, (status, None, 1, 1))
                for status in ("done", "failed", "quarantined", "cancelled")
            ),
            (
                "UPDATE jobs SET status = 'pending', locked_by = NULL, claim_token = 7",
                True,
                ("running", "foreign", 2, 8),
            ),
        ],
        ids=["claimed", "done", "failed", "quarantined", "cancelled", "given back"],
    )
    def test_a_poller_that_has_waited_gets_only_what_is_pending_by_then(
        self,
        change: str,
        gets: bool,
        left: tuple[object, ...],
        desk: Desk,
        engine: Engine,
        foreign: psycopg.Connection,
        held: psycopg.Connection,
    ) -> None:
        job = desk.put()
        ours(held, job)
        if change:
            held.execute(change.encode())
        poller = late(engine.url, foreign, ONE)
        held.commit()
        assert poller.result() == ([(job,)] if gets else [])
        now = desk.job(job)
        assert (now.status, now.locked_by, now.attempts, now.claim_token) == left

    def test_of_two_pollers_one_gets_the_job(
        self, desk: Desk, engine: Engine, foreign: psycopg.Connection, held: psycopg.Connection
    ) -> None:
        job = desk.put()
        assert held.execute(ONE).fetchall() == [(job,)]
        other = late(engine.url, foreign, ONE)
        held.commit()
        assert other.result() == []
        now = desk.job(job)
        assert (now.locked_by, now.attempts, now.claim_token) == ("foreign", 1, 1)

    def test_a_reset_of_running_rows_releases_none_that_is_being_claimed(
        self, desk: Desk, engine: Engine, foreign: psycopg.Connection, held: psycopg.Connection
    ) -> None:
        desk.put()
        claimed = desk.one()
        held.execute("UPDATE jobs SET progress = 0 WHERE id = %s", (claimed.job_id,))
        reset = late(engine.url, foreign, RESET + " RETURNING id")
        held.commit()
        assert reset.result() == []
        assert desk.settle(done(claimed, None)) == []

    def test_the_pollers_statement_of_the_page_takes_another_job_in_place_of_a_held_one(
        self, desk: Desk, engine: Engine, foreign: psycopg.Connection, held: psycopg.Connection
    ) -> None:
        [statement] = [
            block.text
            for block in blocks("sql", document=ROOT / "docs/sharing-the-table.md")
            if "SKIP LOCKED" in block.text
        ]
        first, second = desk.put("report"), desk.put("report")
        ours(held, first)
        assert foreign.execute(statement.encode()).fetchall() == [(second, "{}")]
        assert foreign.execute(statement.encode()).fetchall() == []
        held.commit()
        assert foreign.execute(statement.encode()).fetchall() == []
        assert desk.job(second).locked_by == "foreign"


class TestOneAfterTheOther:
    def test_what_a_worker_holds_stays_its_own(self, desk: Desk, foreign: psycopg.Connection) -> None:
        job = desk.put()
        claimed = desk.one()
        for statement in (CLAIM.format(job), RESET, f"UPDATE jobs SET status = 'done' WHERE id = {job}"):
            assert foreign.execute(statement).rowcount == 0
        assert desk.settle(released(claimed)) == []

    def test_its_own_claim_is_settled_released_or_taken_again(self, desk: Desk, foreign: psycopg.Connection) -> None:
        job = desk.put()
        assert foreign.execute(CLAIM.format(job)).rowcount == 1
        assert foreign.execute(RESET).rowcount == 1
        assert foreign.execute(CLAIM.format(job)).rowcount == 1
        assert foreign.execute(CLAIM.format(job)).rowcount == 0  # it has it
        assert foreign.execute("UPDATE jobs SET status = 'done' WHERE id = %s", (job,)).rowcount == 1
        assert foreign.execute(CLAIM.format(job)).rowcount == 0
        assert foreign.execute("UPDATE jobs SET status = 'pending' WHERE id = %s", (job,)).rowcount == 1
        assert desk.claims.settle_and_claim("w1", [], JobSelector(("tag",)), 1, LOCK, NOW).claims[0].job_id == job


@pytest.fixture(params=["none", "decoys"])
def elsewhere(request: pytest.FixtureRequest, engine: Engine) -> Callable[[], tuple[Desk, psycopg.Connection]]:
    """Our tables in a schema that the search path of others does not have; theirs may have tables of these names."""

    def make() -> tuple[Desk, psycopg.Connection]:
        with psycopg.connect(engine.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA jobs")
            if request.param == "decoys":
                for name in DECOYS:
                    connection.execute(f"CREATE TABLE {name} (key int)")
        from supervisor.engine import open_engine

        ours = open_engine(f"{engine.url}?options=-csearch_path%3Djobs")
        request.addfinalizer((desk := Desk.at(ours)).close)
        plain = psycopg.connect(engine.url, autocommit=True)
        request.addfinalizer(plain.close)
        return desk, plain

    return make


Elsewhere = Callable[[], tuple[Desk, psycopg.Connection]]


class TestWithAnotherSearchPath:
    def test_a_plain_insert_is_a_complete_enqueue_and_wakes_whoever_sleeps(self, elsewhere: Elsewhere) -> None:
        desk, foreign = elsewhere()
        feed = desk.engine.changes()
        feed.version()
        feed.resume()
        foreign.execute("INSERT INTO jobs.jobs (type) VALUES ('tag')")
        until(feed.drain)
        feed.close()
        assert desk.one(now=4e9).job_id == 1
        foreign.execute("INSERT INTO jobs.job_controls (kind, name, value, updated_at) VALUES ('paused', 'tag', 1, 1)")

    def test_a_foreign_claim_has_the_time_that_our_table_says(self, elsewhere: Elsewhere) -> None:
        desk, foreign = elsewhere()
        job = desk.put()
        foreign.execute("UPDATE jobs.job_meta SET value = '600' WHERE key = 'foreign_lock_time'")
        foreign.execute(f"UPDATE jobs.jobs SET status = 'running' WHERE id = {job}")
        now = desk.job(job)
        assert now.lock_expires_at is not None
        assert now.locked_at is not None
        assert abs(now.lock_expires_at - now.locked_at - 600) < 1

    def test_whoever_inserts_into_tables_that_were_moved_is_told_so(self, elsewhere: Elsewhere) -> None:
        desk, foreign = elsewhere()
        with closing(desk.engine.move_end()) as end:
            end.shut(MOVED_TO, "postgresql://elsewhere")
        with pytest.raises(psycopg.errors.RaiseException, match="the jobs were moved to postgresql://elsewhere"):
            foreign.execute("INSERT INTO jobs.jobs (type) VALUES ('tag')")

    def test_a_callers_connection_that_does_not_find_the_tables_is_refused_with_what_helps(
        self, elsewhere: Elsewhere
    ) -> None:
        desk, foreign = elsewhere()
        foreign.execute("DROP TABLE IF EXISTS job_meta")  # both of another program are nobody's business
        with Queue(desk.engine.url, create=False) as queue, pytest.raises(StoreError, match="search_path"):
            queue.enqueue("tag", connection=foreign)
        with Queue(desk.engine.url) as queue:
            with pytest.raises(StoreError, match="search_path"):
                queue.enqueue("tag", connection=foreign)
            foreign.execute("SET search_path = jobs, public")
            assert queue.enqueue("tag", connection=foreign) == 1


def test_no_function_of_a_trigger_names_a_table_without_its_schema(desk: Desk, foreign: psycopg.Connection) -> None:
    """Whoever writes a row runs it, with a search path of its own, unless the function has one."""
    desk.claims.register(worker_record("w1"))
    names = [name for (name,) in foreign.execute("SELECT relname FROM pg_class WHERE relname LIKE 'job%'").fetchall()]
    functions = foreign.execute(
        "SELECT DISTINCT p.proname, p.prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " WHERE NOT t.tgisinternal AND NOT coalesce(p.proconfig::text LIKE '%search_path=%', false)"
    ).fetchall()
    assert functions
    for function, source in functions:
        words = source.replace("%I.", "%I.of_the_schema_").split()
        assert not set(names) & {word.strip("(),;") for word in words}, function
