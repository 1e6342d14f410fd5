"""A lease decides whose jobs may be taken, and who may claim: whatever two hosts do at the same moment."""

from __future__ import annotations

import time
from itertools import chain, count
from typing import Any

import psycopg
import pytest

from supervisor.domain.errors import LeaseHeld, StoreError
from supervisor.domain.settlement import done, released
from supervisor.maintenance.lease import LeaseRenewal
from supervisor.maintenance.recovery import Recovery
from supervisor.maintenance.reports import Poller, control_settings
from supervisor.store.base import Engine, JobSelector, SupervisorRecord
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.maintenance import PostgresRegistry
from supervisor.system.scoreboard import ClaimGate, boot_time
from tests.store.kit import NOW, Desk, supervisor_record, worker_record

END = "UPDATE job_supervisors SET lease_until = extract(epoch FROM now()) - 1"


@pytest.fixture
def gate() -> ClaimGate:
    gate = ClaimGate()
    gate.needed = 1
    return gate


@pytest.fixture
def record(desk: Desk, engine: Engine) -> SupervisorRecord:
    """A supervisor on another host, with a worker that has claimed a job."""
    record = supervisor_record("far", engine, "/nowhere", boot_id="another", machine_id="another", host="far")
    desk.maintenance.registry.register(record)
    desk.claims.register(worker_record("w1", "far"))
    desk.put()
    return record


@pytest.fixture
def recovery(desk: Desk, record: SupervisorRecord, monkeypatch: pytest.MonkeyPatch) -> Recovery:
    """That of a new maintainer, which looks every seven seconds. After six looks, it cannot for a while."""
    times, clock, look = chain(range(100, 142, 7), count(160, 7)), [0], PostgresRegistry.supervisors

    def look_later(registry: PostgresRegistry) -> list[SupervisorRecord]:
        clock[0] = next(times)
        return look(registry)

    monkeypatch.setattr(PostgresRegistry, "supervisors", look_later)
    monkeypatch.setitem(PostgresRegistry.owner_lives.__globals__, "boot_time", lambda: clock[0])
    return Recovery(desk.maintenance.registry, desk.maintenance.locks, "s2")


def recovered(recovery: Recovery) -> tuple[int, int]:
    """Supervisors and jobs."""
    recovery.recovered.clear()
    recovery.run(NOW)
    return recovery.recovered["supervisors"], recovery.recovered["jobs"]


def test_renewing_says_what_time_it_is_for_all(desk: Desk, record: SupervisorRecord) -> None:
    registry = desk.maintenance.registry
    at = registry.renew("far", "what it posts")
    assert at is not None
    assert abs(at - time.time()) < 5  # the server is on this machine
    assert registry.renew("far", None)
    assert registry.leases()["far"].posted == "what it posts"
    assert 10 < registry.leases()["far"].left <= 15
    assert registry.renew("unknown", "") is None


def test_the_jobs_of_a_lease_that_holds_are_not_taken(
    desk: Desk, recovery: Recovery, foreign: psycopg.Connection
) -> None:
    claim = desk.one()
    for _ in range(5):
        assert recovered(recovery) == (0, 0)
    with pytest.raises(LeaseHeld):
        desk.maintenance.locks.settle_dead("w1", [released(claim)], NOW, supervisor="far")
    assert desk.maintenance.registry.worker("w1") is not None
    foreign.execute(END)
    assert recovered(recovery) == (1, 1)
    assert desk.maintenance.registry.supervisors() == []
    assert desk.claims.held_by("w1") == []  # its session was ended: now it has another one
    assert desk.settle(done(claim, None)) == [claim.job_id]  # too late


def test_looking_after_many_hosts_takes_no_more_questions_than_after_one(
    desk: Desk, engine: Engine, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Connection.rows

    def noted(connection: Connection, sql: str, parameters: Any = ()) -> list[Any]:
        asked.append(sql)
        return ask(connection, sql, parameters)

    monkeypatch.setattr(Connection, "rows", noted)

    def questions() -> int:
        asked.clear()
        assert recovered(recovery) == (0, 0)
        return len(asked)

    with_one = questions()
    for number in range(5):
        one = supervisor_record(f"far-{number}", engine, "/nowhere", boot_id="another", host=f"far-{number}")
        desk.maintenance.registry.register(one)
    assert 0 < questions() <= with_one


def test_leases_that_ended_while_nobody_could_reach_the_server_are_waited_for(
    desk: Desk, recovery: Recovery, foreign: psycopg.Connection
) -> None:
    desk.one()
    for _ in range(6):
        assert recovered(recovery) == (0, 0)
    foreign.execute(END)
    for _ in range(3):  # from when it could ask again, as long as a lease
        assert recovered(recovery) == (0, 0)
    assert recovered(recovery) == (1, 1)


def test_who_is_started_while_nobody_could_reach_the_server_waits_for_the_others_too(
    desk: Desk, recovery: Recovery, foreign: psycopg.Connection
) -> None:
    desk.one()
    foreign.execute(END)
    for _ in range(3):
        assert recovered(recovery) == (0, 0)
    assert recovered(recovery) == (1, 1)


def test_a_host_that_comes_back_meanwhile_keeps_what_is_not_settled(
    desk: Desk,
    record: SupervisorRecord,
    recovery: Recovery,
    foreign: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = desk.one()
    registry, locks = desk.maintenance.registry, desk.maintenance.locks
    for _ in range(5):
        recovery.run(NOW)
    foreign.execute(END)
    held_by = locks.held_by

    def back(owner: str) -> object:
        registry.renew("far", None)  # after it was found dead, before anything was settled
        return held_by(owner)

    monkeypatch.setattr(locks, "held_by", back)
    assert recovery.run(NOW).done == 0
    assert registry.supervisors() == [record]
    assert desk.claims.held_by("w1") == [claim]  # its session was ended: now it has another one
    assert desk.settle(done(claim, None)) == []


def test_a_worker_whose_row_is_gone_claims_nothing_until_it_is_registered_again(
    desk: Desk, record: SupervisorRecord, foreign: psycopg.Connection
) -> None:
    foreign.execute("DELETE FROM job_workers")
    exchange = desk.claims.settle_and_claim("w1", [], JobSelector(("tag",)), 1, 60.0, NOW)
    assert exchange.claims == []
    assert not exchange.registered
    desk.claims.register(worker_record("w1", "far"))
    assert len(desk.claim()) == 1


def test_clones_of_a_machine_are_not_taken_for_each_other(desk: Desk, engine: Engine) -> None:
    record = supervisor_record("clone", engine, "/nowhere", boot_id="another")
    desk.maintenance.registry.register(record)
    assert desk.maintenance.registry.owner_lives(record) is True


def test_who_is_certainly_dead_here_is_not_waited_for(desk: Desk, engine: Engine) -> None:
    record = supervisor_record("s1", engine, "/nowhere", pid=2**22 + 1, node=engine.ownership.node)
    desk.maintenance.registry.register(record)
    desk.claims.register(worker_record("w1", "s1"))
    desk.put()
    desk.one()
    recovery = Recovery(desk.maintenance.registry, desk.maintenance.locks, "s2")
    assert recovered(recovery) == (1, 1)


def test_a_process_in_another_name_space_of_this_machine_is_judged_by_its_lease(desk: Desk, engine: Engine) -> None:
    record = supervisor_record("s1", engine, "/nowhere", pid=2**22 + 1, node="container pid:[1]")
    desk.maintenance.registry.register(record)
    assert desk.maintenance.registry.owner_lives(record) is True


def test_a_lease_is_counted_from_before_it_was_asked_for(
    desk: Desk, record: SupervisorRecord, gate: ClaimGate, foreign: psycopg.Connection
) -> None:
    posts = ["one", "one", "two"]
    renewal = LeaseRenewal(desk.maintenance.registry, record, gate, 15.0, lambda: posts.pop(0))
    before = boot_time()
    assert renewal.run(NOW).news
    assert gate.is_open()
    [(until,)] = foreign.execute("SELECT lease_until - extract(epoch FROM clock_timestamp()) FROM job_supervisors")
    assert not gate.until > boot_time() + float(until)
    assert gate.until - before == pytest.approx(14.0, abs=1.0)
    generation = gate.generation
    assert not renewal.run(NOW).news
    assert gate.generation == generation
    assert abs(gate.now() - time.time()) < 5


def test_whoever_had_no_lease_for_a_while_registers_again(
    desk: Desk, record: SupervisorRecord, gate: ClaimGate, foreign: psycopg.Connection
) -> None:
    renewal = LeaseRenewal(desk.maintenance.registry, record, gate, 15.0, lambda: "")
    renewal.run(NOW)
    generation = gate.generation
    gate.renewed(boot_time() - 1, 0.0, again=False)
    assert renewal.run(NOW).news
    assert gate.generation == generation + 1
    foreign.execute("DELETE FROM job_supervisors")  # another host has recovered it, whatever our clock says
    renewal.run(NOW)
    assert gate.generation == generation + 2
    assert desk.maintenance.registry.supervisors() == [record]


def test_without_an_answer_the_lease_ends_by_itself(desk: Desk, record: SupervisorRecord, gate: ClaimGate) -> None:
    class Gone:
        def renew(self, supervisor: str, posted: str | None) -> float | None:
            raise StoreError("no route to host")

    LeaseRenewal(desk.maintenance.registry, record, gate, 15.0, lambda: "").run(NOW)
    gate.renewed(boot_time() + 0.05, 0.0, again=False)
    with pytest.raises(StoreError):
        LeaseRenewal(Gone(), record, gate, 15.0, lambda: "").run(NOW)  # type: ignore[arg-type] - no more is asked of it
    time.sleep(0.06)
    assert not gate.is_open()


def test_draining_is_passed_on(desk: Desk, gate: ClaimGate) -> None:
    watch = Poller("controls", lambda: control_settings(desk.maintenance.controls, (), "far", gate), lambda _: None)
    gate.renewed(boot_time() + 60, 0.0, again=True)
    controls = desk.operations.controls
    assert controls.drain("far", NOW)
    assert not controls.drain("far", NOW)
    assert controls.drain("near", NOW)
    watch.run(NOW)
    assert gate.drained
    assert controls.current().drained == {"far", "near"}
    assert controls.undrain("far")
    assert not controls.undrain("far")
    assert watch.run(NOW).news
    assert gate.is_open()
