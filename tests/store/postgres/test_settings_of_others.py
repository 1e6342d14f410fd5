"""What a role or a database has set, and what rows of others hold, changes nothing of what we do."""

from __future__ import annotations

import time
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from supervisor.domain.errors import EnqueueUncertain, StoreBusy, StoreUnavailable
from supervisor.domain.job import NewJob, Status
from supervisor.domain.recovery import JobPolicy, settle_expired
from supervisor.domain.settlement import done
from supervisor.store.base import Engine, Filter, JobSelector
from supervisor.store.postgres import connection as connections
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import Inserted, resolve_doubt
from tests import next_release
from tests.store.kit import LOCK, NOW, Desk, until
from tests.store.postgres.meanwhile import Meanwhile

EXACT = 1_763_908_471.123456  # more digits than some settings show
HOSTILE = {
    "default_transaction_isolation": "repeatable read",
    "extra_float_digits": "-9",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "default_transaction_deferrable": "on",
    "bytea_output": "escape",
    "datestyle": "German",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Kathmandu",
    "lc_messages": "C",
    "row_security": "off",
    "xmloption": "document",
    "client_encoding": "LATIN1",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "check_function_bodies": "off",
    "plan_cache_mode": "force_custom_plan",
    "idle_in_transaction_session_timeout": "3000",
    "statement_timeout": "3000",
    "lock_timeout": "3000",
}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, engine: Engine) -> str:
    """Set for the database, before anything of ours is in it."""
    name: str = request.param
    with psycopg.connect(engine.url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE {database} SET {name} = '{HOSTILE[name]}'".encode())
    return name


def test_an_idle_session_is_not_ended(engine: Engine) -> None:
    with psycopg.connect(engine.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET idle_session_timeout = '100ms'".encode())
    with closing(Connection(Address(engine.url))) as ours:
        session = ours.row("SELECT pg_backend_pid()")
        time.sleep(0.4)
        assert ours.row("SELECT pg_backend_pid()") == session


def test_no_setting_of_a_database_changes_what_happens(hostile: str, engine: Engine) -> None:
    with closing(Desk.at(engine)) as desk:
        jobs = desk.producer.enqueue([NewJob("tag", "{}", scheduled_at=1.0, requires="a\tb") for _ in range(3)])
        jobs.append(desk.put())
        with closing(engine.claims()) as other:  # each sees what the other has committed meanwhile
            mine = desk.claim(want=2, capabilities="b a")
            theirs = other.settle_and_claim("w2", [], JobSelector(("tag",), "b a"), 2, LOCK, NOW).claims
        assert sorted(claim.job_id for claim in mine + theirs) == jobs
        assert desk.settle(*(done(claim, None) for claim in mine)) == []
        assert [desk.job(claim.job_id).result for claim in mine] == [None, None]

        assert desk.producer.enqueue([NewJob("other", "{}", scheduled_at=1.0, requires="s")])
        assert desk.claim(["other"], capabilities="S") == []

        job = desk.put("third")  # whoever has waited for a row goes on with what it is then
        with psycopg.connect(engine.url) as held, psycopg.connect(engine.url, autocommit=True) as watch:
            held.execute("UPDATE jobs SET progress = 0.5 WHERE id = %s", (job,))
            cancel = Meanwhile(watch, lambda: desk.operations.actions.cancel(job, NOW))
            held.commit()
            assert cancel.result() is Status.CANCELLED

        schedules = desk.maintenance.schedules
        planned = schedules.plan("nightly", "{}", EXACT, type="tag")
        assert schedules.fire(planned, [NewJob("tag", "{}")], EXACT + 1, EXACT) is not None
        later = EXACT + 1e6
        for row in desk.maintenance.locks.expired(later, 10):
            assert desk.maintenance.locks.reclaim(row, lambda c, o: settle_expired(c, o, JobPolicy(), 0.5), later)
        assert desk.maintenance.locks.expired(later, 10) == []


def test_what_a_connection_says_is_what_we_have_set(hostile: str, engine: Engine) -> None:
    with closing(Connection(Address(engine.url))) as connection:
        for name, value in connection._settings.items():
            [(found,)] = connection.rows("SELECT setting FROM pg_settings WHERE name = %(name)s", {"name": name})
            assert found == value


@pytest.mark.parametrize(
    "note", [r'"a\u0000b"', r'"\ud800"', "1e400000", "[" * 3000 + "]" * 3000], ids=["nul", "surrogate", "huge", "deep"]
)
def test_whatever_json_is_in_a_row_stops_no_alert_and_no_list(
    note: str, desk: Desk, foreign: psycopg.Connection
) -> None:
    """`json` takes more than `jsonb` can hold."""
    foreign.execute("INSERT INTO jobs (type, meta) VALUES ('tag', %s)", (f'{{"tags": ["x"], "note": {note}}}',))
    foreign.execute("""INSERT INTO jobs (type, meta) VALUES ('tag', '{"tags": ["x"]}'), ('tag', '{"alert": "a"}')""")
    for claim in desk.claim(want=3, now=4e9):
        foreign.execute(
            "INSERT INTO job_errors (job_id, attempt, kind, message, created_at) VALUES (%s, 1, 'x', 'y', 1)",
            (claim.job_id,),
        )
        foreign.execute("UPDATE jobs SET status = 'failed', locked_by = NULL WHERE id = %s", (claim.job_id,))
    alerts = desk.maintenance.finished.alerts
    assert [found[:2] for found in alerts.failed("failed", 0, alerts.latest_error())] == [("tag", 2)]
    jobs = desk.operations.jobs
    assert 2 in jobs.ids(Filter(tags=("x",)))
    assert 2 in [job.id for job in jobs.latest(status=None, type=None, before=None, limit=9, tags=("x",))]
    assert jobs.ids(Filter(tags=("a\0b",))) == []


def test_a_statement_that_takes_too_long_is_not_blamed_on_others(
    desk: Desk, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STATEMENT_TIMEOUT", 0.05)
    with closing(Connection(Address(engine.url))) as connection:
        with pytest.raises(StoreUnavailable, match="took longer") as caught:
            connection.rows("SELECT pg_sleep(20)")
        assert not isinstance(caught.value, StoreBusy)


def test_a_migration_takes_its_time_and_makes_tables_that_can_be_updated(
    desk: Desk, engine: Engine, foreign: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.execute("CREATE ACCESS METHOD columns_only TYPE TABLE HANDLER heap_tableam_handler")
    foreign.execute(f"ALTER DATABASE {foreign.info.dbname} SET default_table_access_method = 'columns_only'".encode())
    monkeypatch.setattr(connections, "STATEMENT_TIMEOUT", 0.05)
    plan = next_release.plan("postgres", "SELECT pg_sleep(0.5); CREATE TABLE job_new (id int)")
    with closing(Connection(Address(engine.url))) as connection:
        assert schema.migrate(connection, plan) == [plan[-1].version]
        with pytest.raises(StoreUnavailable):
            connection.rows("SELECT pg_sleep(20)")  # afterwards all is as before
    kind = "SELECT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.relname = 'job_new'"
    assert foreign.execute(kind).fetchone() == ("heap",)


def test_the_number_of_a_transaction_that_another_one_has_now_proves_nothing(desk: Desk, engine: Engine) -> None:
    """After a crash or a failover, numbers of transactions are used again."""
    job = desk.job(desk.put())
    assert job.created_at is not None
    lost = psycopg.OperationalError("lost")
    with closing(Connection(Address(engine.url))) as connection:
        [(number,)] = connection.rows("SELECT xmin::text FROM jobs")
        resolve_doubt(connection, engine.url, Inserted(number, job.id, job.created_at), lost)
        for other in (Inserted(number, job.id + 1, job.created_at), Inserted(number, job.id, job.created_at - 1)):
            with pytest.raises(EnqueueUncertain):
                resolve_doubt(connection, engine.url, other, lost)
    assert desk.status(job.id) is Status.PENDING


def ended(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_the_session_of_a_dead_worker_is_ended_whatever_its_user_is(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    role = f"worker_{foreign.info.dbname}"
    foreign.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
    parts = urlsplit(engine.url)
    url = parts._replace(netloc=f"{role}:x@{parts.hostname}:{parts.port}").geturl()
    try:
        with closing(psycopg.connect(url, application_name="job-supervisor w9", autocommit=True)) as other:
            desk.maintenance.locks.held_by("w9")
            until(lambda: ended(other))
    finally:
        foreign.execute(f"DROP ROLE {role}".encode())
