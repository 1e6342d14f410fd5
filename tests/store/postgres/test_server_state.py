"""What `doctor` is told about the server."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from supervisor.domain.job import Status
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.ops.diagnosis import diagnose
from supervisor.ops.doctor import database, examine
from supervisor.ops.status import gather
from supervisor.store.base import Engine, JobSelector, SettledAndClaimed
from tests.postgres_server import Databases
from tests.store.kit import LOCK, NOW, Desk, supervisor_record, until, worker_record


def facts(engine: Engine, level: str) -> str:
    return " | ".join(finding.fact for finding in database.examine(engine.url) if finding.level == level)


def test_it_is_as_the_server_says(desk: Desk) -> None:
    state = desk.operations.statistics.server()
    assert state is not None
    assert abs(state.time - time.time()) < 5
    assert 0 < state.connections < state.max_connections
    assert not state.standby


def test_an_old_transaction_is_named(desk: Desk, engine: Engine) -> None:
    with psycopg.connect(engine.url, application_name="forgotten") as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        state = desk.operations.statistics.server()
        assert state is not None
        [keeper] = state.keepers
        assert (keeper.kind, keeper.long) == ("transaction", False)
        assert keeper.seconds is not None
        assert keeper.seconds > 0
        assert keeper.who.startswith(f"pid {other.info.backend_pid}, forgotten, user ")
        assert keeper.who.endswith(", idle in transaction")


def test_a_user_who_does_not_see_the_others_is_told_so_and_counts_them_all_the_same(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    assert "not visible" not in facts(engine, "note")
    role = f"blind_{foreign.info.backend_pid}"
    foreign.execute(f"CREATE ROLE {role}")
    try:
        foreign.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        url = f"{engine.url}{'&' if '?' in engine.url else '?'}options=-c%20role%3D{role}"
        with psycopg.connect(engine.url) as other, closing(open_engine(url).operations()) as blind:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            state = blind.statistics.server()
            assert state is not None
            assert not state.sees_all
            assert state.connections >= 3  # of other users
            assert all(keeper.seconds is None for keeper in state.keepers)  # perhaps it is seen, but not since when
            assert "the transactions of other users are not visible to this user" in facts(open_engine(url), "note")
            foreign.execute(f"GRANT pg_read_all_stats TO {role}")
            state = blind.statistics.server()
            assert state is not None
            assert state.sees_all
            [keeper] = state.keepers
            assert keeper.seconds is not None
            assert "not visible" not in facts(open_engine(url), "note")
    finally:
        foreign.execute(f"DROP OWNED BY {role}")
        foreign.execute(f"DROP ROLE {role}")


def test_the_doctor_finds_nothing_wrong_with_a_sound_server(desk: Desk, engine: Engine) -> None:
    assert "this host's agrees with the server's" in facts(engine, "ok")
    assert "the running supervisors need 0 at most" in facts(engine, "ok")


def test_the_doctor_says_nothing_of_sqlite_on_a_server(desk: Desk, engine: Engine, tmp_path: Path) -> None:
    assert not [finding for finding in examine(None, engine.url) if "sqlite" in f"{finding}".lower()]
    assert [finding for finding in examine(None, f"sqlite:///{tmp_path}/jobs.db") if finding.about == "sqlite"]


def test_the_doctor_names_a_lease_that_has_ended(desk: Desk, engine: Engine, foreign: psycopg.Connection) -> None:
    desk.maintenance.registry.register(supervisor_record("s1", engine, "/nowhere", boot_id="other", host="far", pid=7))
    foreign.execute("UPDATE job_supervisors SET lease_until = lease_until - 115")
    assert "supervisor 7 has ended unexpectedly; its lease ended 1.67m ago" in facts(engine, "note")


def test_a_database_without_tables_is_no_fault(postgres: Databases, engine: Engine) -> None:
    assert "has no job tables yet" in facts(engine, "note")


def test_users_who_may_not_end_the_sessions_of_other_hosts_are_named_with_what_to_grant(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    """Each host has a user of its own. What a dead worker may still claim goes back all the same."""
    here, there = (f"{name}_{foreign.info.backend_pid}" for name in ("here", "there"))
    try:
        for role in (here, there):
            foreign.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
            foreign.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
            foreign.execute(f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO {role}")
            foreign.execute(f"GRANT pg_read_all_stats TO {role}")
        assert powerless(desk) == []
        with (
            closing(_as(engine, there).claims()) as theirs,
            closing(_as(engine, here).claims()) as ours,
            closing(_as(engine, here).maintenance()) as maintenance,
        ):
            theirs.register(worker_record("w1"))
            ours.register(worker_record("w2"))
            assert powerless(desk) == [here, there]
            [found] = [one for one in diagnose(gather(engine, desk.operations)) if one.name == "powerless"]
            assert f"GRANT pg_signal_backend TO {here}, {there}" in found.advice

            assert maintenance.locks.held_by("w1") == []  # its session lives on
            desk.put()
            [late] = theirs.settle_and_claim("w1", [], JobSelector(("tag",)), 1, LOCK, NOW).claims
            assert maintenance.locks.settle_dead("w1", [], NOW) == 0
            assert desk.status(late.job_id) is Status.PENDING
            assert theirs.settle_and_claim(
                "w1", [done(late, None)], JobSelector(("tag",)), 1, LOCK, NOW
            ) == SettledAndClaimed([], [late.job_id], doubtful=True, registered=False)

            foreign.execute(f"GRANT pg_signal_backend TO {here}, {there}")
            assert powerless(desk) == []
            theirs.register(worker_record("w1"))
            maintenance.locks.held_by("w1")
            until(lambda: not _sessions(foreign, there))
    finally:
        for role in (here, there):
            foreign.execute(f"DROP OWNED BY {role}")
            foreign.execute(f"DROP ROLE {role}")


def powerless(desk: Desk) -> tuple[str, ...]:
    state = desk.operations.statistics.server()
    assert state is not None
    return state.powerless


def _as(engine: Engine, role: str) -> Engine:
    parts = urlsplit(engine.url)
    return open_engine(parts._replace(netloc=f"{role}:x@{parts.hostname}:{parts.port}").geturl())


def _sessions(foreign: psycopg.Connection, role: str) -> list[object]:
    return foreign.execute(
        "SELECT pid FROM pg_stat_activity WHERE usename = %s AND application_name LIKE 'job-supervisor %%'", (role,)
    ).fetchall()
