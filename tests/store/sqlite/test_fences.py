"""Rows that no job can have: refused by the table, and set aside where one gets in."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import Any, cast
from unittest import mock

import pytest

from supervisor import Status
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim, NewJob
from supervisor.domain.settlement import Usage, done, failed, released
from supervisor.store.base import JobSelector
from supervisor.store.sql.connection import quarantine
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.claims import SqliteClaims
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.maintenance import SqliteMaintenance
from tests import next_release
from tests.store.kit import BROKEN, NOW, POLICY, Desk

MOST = 2**63 - 1
COUNTERS = ("claim_token", "attempts", "crashes")
RAISES = ("ABORT", "FAIL", "ROLLBACK")  # what a trigger may do
HUGE = "x" * (1 << 20) + "x"


def insert(foreign: sqlite3.Connection, **columns: object) -> int:
    """Whatever the CHECKs say."""
    foreign.execute("PRAGMA ignore_check_constraints = ON")
    row = {"type": "tag", "scheduled_at": 1.0} | columns
    sql = f"INSERT INTO jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    job = foreign.execute(sql, list(row.values())).lastrowid
    foreign.execute("PRAGMA ignore_check_constraints = OFF")
    assert job is not None
    return job


class TestRefused:
    @pytest.mark.fault(58, 59, 60)
    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("id", 0),
            ("id", -1),
            ("id", MOST),
            *[(name, value) for name in COUNTERS for value in (-1, MOST, -MOST)],
            ("type", "b\0/../../pools/x?"),
            ("type", "tag\0"),
            ("type", "tag\0" + "x" * 1000),
            ("requires", "gpu\0x"),
            ("requires", "x" * 1001),
            ("unique_key", "k\0"),
            ("unique_key", "x" * 4001),
            ("payload", HUGE),
            ("meta", "[]"),
            ("meta", "no json"),
            ("meta", '{"a":"' + "x" * (16 << 10) + '"}'),
        ],
    )
    def test_a_row_that_no_job_can_have(
        self, desk: Desk, foreign: sqlite3.Connection, column: str, value: object
    ) -> None:
        job = desk.put()
        row = {"type": "tag"} | {column: value}
        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute(
                f"INSERT INTO jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
            )
        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", [value, job])
        assert desk.one().job_id == job

    @pytest.mark.parametrize("type_", ["App/Jobs:Send", "A", "tag", "a.b-c_d:e/F9"])
    def test_not_a_type_with_capitals_colons_and_slashes(self, desk: Desk, type_: str) -> None:
        job = desk.put(type_)
        assert desk.one(types=[type_]).job_id == job


class TestSetAside:
    @pytest.mark.fault(58)
    @pytest.mark.parametrize("want", [1, 10])
    @pytest.mark.parametrize("column", ["claim_token", "attempts"])
    def test_a_row_that_cannot_be_claimed_keeps_nobody_from_the_others(
        self, desk: Desk, foreign: sqlite3.Connection, column: str, want: int
    ) -> None:
        poisoned = [insert(foreign, **{column: MOST}) for _ in range(12)]
        good = desk.put()
        assert [claim.job_id for _ in range(3) for claim in desk.claim(want=want)] == [good]
        for job in poisoned:
            assert desk.status(job) is Status.QUARANTINED
            assert [attempt.kind for attempt in desk.operations.jobs.attempts(job)] == ["row"]

    def test_it_can_be_retried(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        job = insert(foreign, claim_token=MOST)
        assert desk.claim(now=NOW) == []
        assert desk.operations.actions.retry([job], NOW).changed == 1
        assert desk.one().job_id == job

    @pytest.mark.fault(59)
    @pytest.mark.parametrize("job_id", [0, -5])
    def test_a_job_that_has_no_id_never_runs(self, desk: Desk, foreign: sqlite3.Connection, job_id: int) -> None:
        insert(foreign, id=job_id)
        good = desk.put()
        assert [c.job_id for _ in range(2) for c in desk.claim(want=5)] == [good]

    @pytest.mark.parametrize("how", RAISES)
    @pytest.mark.parametrize("result", [None, '"x"'])
    def test_an_outcome_that_is_refused_takes_no_other_with_it(
        self, desk: Desk, foreign: sqlite3.Connection, result: str | None, how: str
    ) -> None:
        jobs = [desk.put() for _ in range(5)]
        foreign.execute(
            f"CREATE TRIGGER no BEFORE UPDATE OF status ON jobs WHEN NEW.id = {jobs[2]} AND NEW.status = 'done' "
            f"BEGIN SELECT RAISE({how}, 'not this one'); END"
        )
        ends = desk.settle_and_claim(*[done(claim, result) for claim in desk.claim(want=5)], want=0)
        assert ends.lost == []
        assert list(ends.refused) == [(jobs[2], "not this one")]
        assert [desk.status(job) for job in jobs].count(Status.DONE) == 4
        assert desk.job(jobs[2]).last_error == "the database refuses this row: not this one"

    @pytest.mark.fault(58)
    def test_a_crash_count_at_its_greatest_keeps_no_settlement_from_being_written(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        job = insert(foreign, crashes=MOST)
        other = desk.put()
        claims = desk.claim(want=2)
        assert desk.settle(*(failed(claim, BROKEN, POLICY, chance=0.5)._replace(crashes=1) for claim in claims)) == []
        assert [desk.status(each) for each in (job, other)] == [Status.PENDING] * 2
        assert desk.job(job).crashes < MOST

    @pytest.mark.parametrize("how", RAISES)
    def test_a_claim_that_is_refused_keeps_no_other_back(
        self, desk: Desk, foreign: sqlite3.Connection, how: str
    ) -> None:
        jobs = [desk.put(priority=number % 2) for number in range(5)]
        foreign.execute(
            f"CREATE TRIGGER no BEFORE UPDATE OF status ON jobs WHEN NEW.id = {jobs[2]} AND NEW.status = 'running' "
            f"BEGIN SELECT RAISE({how}, 'not this one'); END"
        )
        claimed = [claim.job_id for _ in range(3) for claim in desk.claim(want=3)]
        assert claimed == [jobs[1], jobs[3], jobs[0], jobs[4]]
        assert desk.status(jobs[2]) is Status.QUARANTINED

    @pytest.mark.parametrize("how", RAISES)
    @pytest.mark.parametrize("want", [1, 3])
    def test_a_row_that_refuses_whatever_is_done_to_it_is_passed_over(
        self, desk: Desk, foreign: sqlite3.Connection, want: int, how: str
    ) -> None:
        jobs = [desk.put() for _ in range(4)]
        running = desk.one()
        foreign.execute(
            f"CREATE TRIGGER no BEFORE UPDATE ON jobs WHEN NEW.id IN ({jobs[0]}, {jobs[1]}) "
            f"BEGIN SELECT RAISE({how}, 'neither of these'); END"
        )
        assert desk.settle_and_claim(done(running, None), want=0).lost == [jobs[0]]
        assert [claim.job_id for _ in range(3) for claim in desk.claim(want=want)] == jobs[2:]
        assert [desk.status(job) for job in jobs[:2]] == [Status.RUNNING, Status.PENDING]

    @pytest.mark.parametrize("how", RAISES)
    def test_children_that_are_refused_fail_their_parent_alone(
        self, desk: Desk, foreign: sqlite3.Connection, how: str
    ) -> None:
        parent, other = desk.put(), desk.put()
        foreign.execute(
            f"CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.type = 'bad' BEGIN SELECT RAISE({how}, 'no'); END"
        )
        one, two = desk.claim(want=2)
        assert desk.settle(done(one, None, children=(NewJob("bad", "{}"),)), done(two, None)) == []
        assert [desk.status(job) for job in (parent, other)] == [Status.FAILED, Status.DONE]
        assert desk.operations.jobs.attempts(parent)[0].kind == "children"

    @pytest.mark.parametrize("how", RAISES)
    def test_the_claims_of_the_dead_are_taken_back_beside_a_row_that_must_not_change(
        self, desk: Desk, foreign: sqlite3.Connection, how: str
    ) -> None:
        jobs = [desk.put() for _ in range(3)]
        claims = desk.claim(want=3)
        foreign.execute(
            f"CREATE TRIGGER no BEFORE UPDATE OF status ON jobs WHEN NEW.id = {jobs[1]} AND NEW.status = 'pending' "
            f"BEGIN SELECT RAISE({how}, 'no'); END"
        )
        assert desk.maintenance.locks.settle_dead("w1", [released(claim) for claim in claims], NOW) == 3
        assert [desk.status(job) for job in jobs] == [Status.PENDING, Status.QUARANTINED, Status.PENDING]
        assert desk.maintenance.registry.worker("w1") is None

    @pytest.mark.parametrize("how", RAISES)
    def test_locks_are_renewed_beside_a_row_that_must_not_change(
        self, desk: Desk, foreign: sqlite3.Connection, how: str
    ) -> None:
        jobs = [desk.put() for _ in range(3)]
        desk.claim(want=3)
        foreign.execute(
            f"CREATE TRIGGER no BEFORE UPDATE OF lock_expires_at ON jobs WHEN NEW.id = {jobs[0]} "
            f"BEGIN SELECT RAISE({how}, 'no'); END"
        )
        assert desk.maintenance.locks.renew(["w1"], NOW + 1e6, NOW + 2e6) == 2


def test_an_applications_own_column_is_not_added_again(desk: Desk, foreign: sqlite3.Connection) -> None:
    foreign.execute("ALTER TABLE jobs ADD COLUMN colour INTEGER NOT NULL DEFAULT 5")
    job = desk.put()
    with contextlib.closing(Connection(DatabaseFiles(desk.engine.database.file), synchronous="FULL")) as connection:  # type: ignore[arg-type]
        assert schema.migrate(connection, next_release.plan("sqlite")) == [2]
    assert foreign.execute("SELECT colour FROM jobs WHERE id = ?", [job]).fetchone() == (5,)


class TestLooking:
    @pytest.mark.fault(60)
    @pytest.mark.parametrize("raw", [b"b\0/../x", b"\xff\xfe", b"x" * 3_000_000, b"tag\0\xff" + b"y" * 100_000])
    def test_no_type_blinds_those_who_look(self, desk: Desk, foreign: sqlite3.Connection, raw: bytes) -> None:
        good = desk.put()
        foreign.execute("PRAGMA ignore_check_constraints = ON")
        for status in ("pending", "running", "done", "failed"):
            foreign.execute("INSERT INTO jobs (type, status) VALUES (CAST(? AS TEXT), ?)", [raw, status])
        looks = [
            *desk.operations.statistics.counts(),
            *desk.operations.backlog.by_type(4e9, 10).items(),
            *desk.operations.backlog.unhandled(["tag"]),
            *desk.operations.statistics.speeds(),
            *desk.maintenance.backlog.queue_sizes(4e9),
            *desk.operations.jobs.latest(status=None, type=None, before=None, limit=10),
            desk.operations.statistics.anomalies(4e9),
        ]
        assert len(repr(looks)) < 200_000
        assert sorted(str(type_) for type_, _, _ in desk.operations.statistics.counts())
        assert desk.one(now=4e9).job_id == good

    @pytest.mark.fault(61)
    def test_a_list_of_fat_rows_is_thin(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        foreign.execute("PRAGMA ignore_check_constraints = ON")
        fat = '"' + "x" * 3_000_000 + '"'
        insert = "INSERT INTO jobs (type, payload, result, last_error) VALUES ('tag', ?, ?, ?)"
        foreign.executemany(insert, [(fat, fat, fat)] * 5)
        listed = desk.operations.jobs.latest(status=None, type=None, before=None, limit=10)
        assert len(repr(listed)) < 100_000

    @pytest.mark.fault(61)
    def test_requirements_that_nobody_meets_cost_a_claim_nothing(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        kinds = ((f"c{number:05}",) for number in range(20_000))
        foreign.execute("BEGIN")
        foreign.executemany("INSERT INTO jobs (type, requires, scheduled_at) VALUES ('tag', ?, 1)", kinds)
        foreign.execute("COMMIT")
        jobs = [desk.put(requires="gpu") for _ in range(10)]
        began = time.process_time()
        assert [desk.one(capabilities="gpu").job_id for _ in range(10)] == jobs
        assert time.process_time() - began < 0.2


class TestWhatATriggerMayDo:
    """Each rule is about one row. Its neighbours are claimed and settled, and nobody takes it for the database's."""

    @pytest.mark.parametrize(
        ("body", "values"),
        [
            ("SELECT RAISE(IGNORE);", {}),
            ("SELECT RAISE(ABORT, 'the basket is full, locked, busy and readonly');", {}),
            ("SELECT json_object('at', NEW.created_at);", {"created_at": b"\0\xff"}),
            ("SELECT json_object(NEW.unique_key, 1);", {"unique_key": None}),
            ("SELECT json_extract(NEW.unique_key, '$.a');", {"unique_key": "no json"}),
            ("SELECT 'x' LIKE replace(hex(zeroblob(30000)), '0', '%');", {}),
            ("SELECT 'x' LIKE 'x' ESCAPE NEW.unique_key;", {"unique_key": "two"}),
            ("SELECT abs(-9223372036854775807 - 1);", {}),
            ("DELETE FROM jobs WHERE id = NEW.id;", {}),
        ],
    )
    @pytest.mark.parametrize("want", [1, 2, 64])
    def test_a_claim(
        self, desk: Desk, foreign: sqlite3.Connection, body: str, values: dict[str, object], want: int
    ) -> None:
        bad = insert(foreign, priority=9, **values)
        good = [desk.put(), desk.put("mail"), desk.put()]
        foreign.execute(
            f"CREATE TRIGGER rule BEFORE UPDATE OF status ON jobs WHEN OLD.id = {bad} AND NEW.status = 'running' "
            f"BEGIN {body} END"
        )
        claimed = [claim.job_id for _ in range(5) for claim in desk.claim(types=("tag", "mail"), want=want)]
        assert sorted(claimed) == good

    @pytest.mark.parametrize(
        "body", ["SELECT RAISE(IGNORE);", "SELECT json_object(NULL, 1);", "SELECT abs(-9223372036854775807 - 1);"]
    )
    def test_a_settlement(self, desk: Desk, foreign: sqlite3.Connection, body: str) -> None:
        jobs = [desk.put() for _ in range(4)]
        claims = desk.claim(want=4)
        foreign.execute(f"CREATE TRIGGER rule BEFORE UPDATE OF status ON jobs WHEN OLD.id = {jobs[1]} BEGIN {body} END")
        assert desk.settle(*(done(claim, None) for claim in claims)) == [jobs[1]]
        assert [desk.status(job) for job in jobs] == [Status.DONE, Status.RUNNING, Status.DONE, Status.DONE]

    @pytest.mark.parametrize("how", RAISES)
    def test_the_row_of_a_run_costs_no_outcome(self, desk: Desk, foreign: sqlite3.Connection, how: str) -> None:
        job = desk.put()
        foreign.execute(f"CREATE TRIGGER rule BEFORE INSERT ON job_runs BEGIN SELECT RAISE({how}, 'no'); END")
        assert desk.settle(done(desk.one(), '"x"')._replace(usage=Usage(duration=1.0))) == []
        assert desk.job(job).result == "x"

    def test_a_schema_that_no_statement_fits_is_nobody_s_fault(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        job = desk.put()
        foreign.execute("CREATE TRIGGER rule BEFORE UPDATE ON jobs BEGIN SELECT missing FROM nowhere; END")
        with pytest.raises(StoreError):
            desk.claim()
        foreign.execute("DROP TRIGGER rule")
        assert desk.one().job_id == job

    @pytest.mark.parametrize("how", RAISES)
    def test_a_command_for_many_jobs(self, desk: Desk, foreign: sqlite3.Connection, how: str) -> None:
        jobs = [desk.put() for _ in range(3)]
        foreign.execute(
            f"CREATE TRIGGER rule BEFORE UPDATE ON jobs WHEN OLD.id = {jobs[1]} BEGIN SELECT RAISE({how}, 'kept'); END"
        )
        with pytest.raises(StoreError, match=f"job {jobs[1]} changed: kept; 2 other jobs were changed"):
            desk.operations.actions.cancel_all(jobs, NOW)
        assert [desk.status(job) for job in jobs] == [Status.CANCELLED, Status.PENDING, Status.CANCELLED]

    @pytest.mark.parametrize("how", ["SELECT RAISE(ROLLBACK, 'kept');", "SELECT json_extract(OLD.result, '$.a');"])
    def test_pruning(self, desk: Desk, foreign: sqlite3.Connection, how: str) -> None:
        jobs = [desk.put() for _ in range(3)]
        desk.settle(*(done(claim, '{"a":1}') for claim in desk.claim(want=3)))
        foreign.execute("UPDATE jobs SET result = 'no json' WHERE id = ?", [jobs[1]])
        foreign.execute(f"CREATE TRIGGER rule BEFORE DELETE ON jobs WHEN OLD.id = {jobs[1]} BEGIN {how} END")
        assert desk.maintenance.finished.prune(0, 100, NOW + 1e6, NOW + 1e6)[0] == 2
        assert desk.producer.job(jobs[1]) is not None


class TestSeveralAtOnce:
    """What one worker does row by row, others do meanwhile."""

    def test_no_job_is_claimed_that_another_worker_has_claimed_or_done(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        jobs = [desk.put() for _ in range(6)]
        foreign.execute(
            f"CREATE TRIGGER rule BEFORE UPDATE OF status ON jobs WHEN OLD.id = {jobs[0]} "
            "BEGIN SELECT RAISE(ROLLBACK, 'not this one'); END"
        )
        claims = desk.engine.claims()
        assert isinstance(claims, SqliteClaims)
        alone = claims._claim_alone

        def meanwhile(job_id: int, mark: dict[str, Any], refused: list[tuple[int, str]]) -> list[Claim]:
            if job_id == jobs[1]:  # all others are taken, and one of them is done
                taken = desk.claim(want=9)
                desk.settle(done(taken[0], '"by another"'))
                assert [claim.job_id for claim in taken] == jobs[1:]
            return alone(job_id, mark, refused)

        with contextlib.closing(claims), mock.patch.object(claims, "_claim_alone", meanwhile):
            assert claims.settle_and_claim("w2", [], JobSelector(("tag",), ""), 6, 60.0, NOW).claims == []
        assert desk.job(jobs[1]).result == "by another"
        assert {desk.status(job) for job in jobs[2:]} == {Status.RUNNING}
        assert desk.job(jobs[2]).attempts == 1

    def test_no_job_is_set_aside_that_another_worker_has(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        job = desk.put()
        claim = desk.one()
        for token, owner, expires_at in (
            (claim.token - 1, "", None),
            (claim.token, "", None),
            (claim.token, "w1", 1.0),
        ):
            assert not quarantine(
                cast("SqliteMaintenance", desk.maintenance)._connection,
                job,
                "x",
                NOW,
                token=token,
                owner=owner,
                expires_at=expires_at,
            )
        assert desk.status(job) is Status.RUNNING
