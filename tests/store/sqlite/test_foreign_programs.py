"""Programs that know nothing of claims work on our table with plain SQL, beside our workers."""

from __future__ import annotations

import sqlite3
import time

import pytest

from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.domain.recovery import JobPolicy, settle_expired
from supervisor.domain.settlement import done, released
from supervisor.store.base import JobSelector
from tests.store.kit import NOW, Desk

CLAIM = (
    "UPDATE jobs SET status='running', attempts=attempts+1 "
    "WHERE id=(SELECT id FROM jobs WHERE status='pending' ORDER BY id LIMIT 1) RETURNING *"
)
RESET = "UPDATE jobs SET status='pending' WHERE status='running'"


def settle(foreign: sqlite3.Connection, job_id: int, status: str = "done") -> int:
    return foreign.execute("UPDATE jobs SET status=? WHERE id=?", [status, job_id]).rowcount


def take_back(desk: Desk, now: float) -> int:
    seen = desk.maintenance.locks.expired(now, 100)
    return sum(
        desk.maintenance.locks.reclaim(row, lambda c, o: settle_expired(c, o, JobPolicy(), 0.5), now) for row in seen
    )


class TestEnqueueing:
    def test_a_bare_insert_is_a_complete_enqueue(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        before = time.time()
        foreign.execute("INSERT INTO jobs (type, payload) VALUES ('tag', '{\"path\":\"cat.jpg\"}')")

        job = desk.job(1)
        assert (job.status, job.payload) == (Status.PENDING, {"path": "cat.jpg"})
        assert before - 1 < job.scheduled_at < time.time() + 1
        assert desk.one(now=time.time() + 1).job_id == 1

    def test_broken_json_is_refused_where_the_insert_asks_for_that(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        insert = "INSERT INTO jobs (type, payload) VALUES ('tag', json(?))"
        for broken in ("{'path': 'cat.jpg'", "", "cat.jpg"):
            with pytest.raises(sqlite3.OperationalError, match="malformed JSON"):
                foreign.execute(insert, [broken])
        foreign.execute(insert, ['{ "path": "cat.jpg" }'])
        assert desk.job(1).payload == {"path": "cat.jpg"}

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("status", "finished"),
            ("type", "tag!"),
            ("type", ""),
            ("type", "a b"),
            ("type", "x" * 101),
            ("priority", 101),
            ("priority", -101),
            ("scheduled_at", 1714644000123),  # milliseconds
            ("scheduled_at", -1),
            ("scheduled_at", "2024-05-01 10:00:00"),
            ("scheduled_at", None),
            ("max_attempts", 0),
            ("payload", None),
            ("payload", b"{}"),
        ],
    )
    def test_what_no_job_can_have_is_refused(
        self, desk: Desk, foreign: sqlite3.Connection, column: str, value: object
    ) -> None:
        row = {"type": "tag", column: value}
        insert = f"INSERT INTO jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"

        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute(insert, list(row.values()))

        assert desk.operations.statistics.counts() == []

    @pytest.mark.parametrize("value", ["2024-05-01 10:00:00", 1714644000123, None, b"x", 1.5])
    def test_created_and_updated_take_anything(self, desk: Desk, foreign: sqlite3.Connection, value: object) -> None:
        foreign.execute("INSERT INTO jobs (type, created_at, updated_at) VALUES ('tag', ?, ?)", [value, value])

        assert (desk.job(1).created_at, desk.job(1).updated_at) == (value, value)
        assert desk.settle(done(desk.one(now=4e9), None)) == []

    @pytest.mark.parametrize("raw", [b"\xff\xfe", b'{"path": "\xc3\x28"}', b"{broken", b""])
    def test_bytes_of_any_kind_come_through_and_can_be_settled(
        self, desk: Desk, foreign: sqlite3.Connection, raw: bytes
    ) -> None:
        foreign.execute("INSERT INTO jobs (type, payload) VALUES ('tag', CAST(? AS TEXT))", [raw])

        claim = desk.one(now=4e9)
        payload = claim.payload if isinstance(claim.payload, bytes) else claim.payload.encode()
        assert payload == raw
        assert desk.operations.jobs.latest(status=None, type=None, before=None, limit=1)[0].id == claim.job_id
        assert desk.settle(done(claim, None)) == []


class TestForeignClaims:
    def test_a_claim_is_stamped_with_an_owner_a_token_and_an_expiry(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        job_id = desk.put()
        assert foreign.execute(CLAIM).fetchone()[0] == job_id

        job = desk.job(job_id)
        assert (job.status, job.locked_by, job.claim_token, job.attempts) == (Status.RUNNING, "foreign", 1, 1)
        assert job.lock_expires_at == pytest.approx(time.time() + 3600, abs=5)
        assert job.started_at == pytest.approx(time.time(), abs=5)

    def test_after_its_expiry_ours_run_it_and_its_late_settlement_does_not_count(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        job_id = desk.put()
        foreign.execute(CLAIM).fetchall()
        foreign.execute("UPDATE jobs SET lock_expires_at = 5 WHERE id = ?", [job_id])
        assert take_back(desk, NOW) == 1
        claim = desk.one(now=4e9)
        assert claim.token == 3

        assert settle(foreign, job_id, "failed") == 0
        assert desk.settle(done(claim, '"ours"')) == []
        assert settle(foreign, job_id, "failed") == 0

        assert (desk.job(job_id).status, desk.job(job_id).result) == (Status.DONE, "ours")

    def test_its_own_reset_at_start_puts_back_its_claims_and_none_of_ours(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        theirs, ours = desk.put(), desk.put()
        foreign.execute(CLAIM).fetchall()
        claim = desk.one()
        before = desk.job(ours)

        assert foreign.execute(RESET).rowcount == 1

        assert (desk.status(theirs), desk.job(theirs).locked_by) == (Status.PENDING, None)
        assert desk.job(ours) == before
        assert desk.settle(done(claim, None)) == []

    def test_a_program_that_writes_its_own_name_into_its_claim_is_stamped_all_the_same(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        job_id = desk.put()
        foreign.execute(CLAIM.replace("status='running'", "status='running', locked_by='poller-1'")).fetchall()

        job = desk.job(job_id)
        assert (job.locked_by, job.claim_token) == ("foreign", 1)
        assert take_back(desk, time.time()) == 0
        foreign.execute("UPDATE jobs SET status='done', locked_by=NULL WHERE id=?", [job_id])
        job = desk.job(job_id)
        assert (job.status, job.locked_by, job.lock_expires_at) == (Status.DONE, None, None)
        assert job.completed_at == pytest.approx(time.time(), abs=5)


class TestMeddling:
    @pytest.mark.parametrize(
        "change",
        [
            "locked_by = NULL",
            "locked_by = 'me'",
            "claim_token = claim_token + 1",
            "status = 'pending', locked_by = NULL, claim_token = claim_token + 1",
        ],
    )
    def test_a_claim_cleared_by_hand_is_lost(self, desk: Desk, foreign: sqlite3.Connection, change: str) -> None:
        desk.put()
        claim = desk.one()
        foreign.execute(f"UPDATE jobs SET {change}")

        assert desk.settle(done(claim, None)) == [claim.job_id]
        assert desk.settle(released(claim)) == [claim.job_id]

    def test_a_row_marked_running_without_a_claim_is_found_and_taken_back(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        foreign.execute("INSERT INTO jobs (type, status) VALUES ('tag', 'running')")

        assert take_back(desk, NOW) == 1
        assert desk.one(now=4e9).job_id == 1

    @pytest.mark.parametrize("raw", [b"\xff", b"gpu \xc3\x28", b"\xed\xa0\x80", "größe".encode()])
    def test_requirements_that_cannot_be_read_are_refused_and_past_that_stop_nobody(
        self, desk: Desk, foreign: sqlite3.Connection, raw: bytes
    ) -> None:
        insert = "INSERT INTO jobs (type, requires) VALUES ('tag', CAST(? AS TEXT))"
        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute(insert, [raw])
        foreign.execute("PRAGMA ignore_check_constraints = ON")
        foreign.execute(insert, [raw])
        good = desk.put(requires="gpu")

        assert desk.one(capabilities="gpu", want=2, now=4e9).job_id == good
        assert desk.maintenance.backlog.depth(JobSelector(("tag",), "gpu"), 4e9, 10).due == 0
        assert not desk.maintenance.backlog.unfinished(JobSelector(("tag",), "gpu"), 4e9, 600.0)

    def test_an_owner_that_cannot_be_read_is_no_owner(self, desk: Desk, foreign: sqlite3.Connection) -> None:
        desk.put()
        claim = desk.one()
        foreign.execute("UPDATE jobs SET locked_by = CAST(x'ff' AS TEXT), cancel_requested_at = 1")

        assert desk.maintenance.controls.cancels("s1", 10) == []
        assert take_back(desk, 4e9) == 1
        assert desk.settle(done(claim, None)) == [claim.job_id]
        assert desk.status(claim.job_id) is Status.CANCELLED

    def test_foreign_keys_of_an_application_do_not_stop_the_pruning_of_other_jobs(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        foreign.execute("CREATE TABLE results (job INTEGER REFERENCES jobs (id))")
        pointed_at, free = desk.put(), desk.put()
        desk.settle(*(done(claim, None) for claim in desk.claim(want=2)))
        foreign.execute("INSERT INTO results VALUES (?)", [pointed_at])

        assert desk.maintenance.finished.prune(0, 100, NOW + 1, NOW + 1) == (1, free)
        assert desk.producer.job(pointed_at)

    def test_errors_of_jobs_deleted_without_foreign_keys_are_pruned(
        self, desk: Desk, foreign: sqlite3.Connection
    ) -> None:
        job_id, _ = desk.put(), desk.put("other")
        desk.finish(job_id, Status.FAILED)
        foreign.execute("PRAGMA foreign_keys = OFF")
        foreign.execute("DELETE FROM jobs WHERE id = ?", [job_id])
        assert len(desk.operations.jobs.attempts(job_id)) == 1

        desk.maintenance.finished.prune(0, 100, NOW + 1, NOW + 1)

        assert desk.operations.jobs.attempts(job_id) == []


def test_a_unique_rule_of_the_application_refuses_with_a_clear_error(desk: Desk, foreign: sqlite3.Connection) -> None:
    foreign.execute("CREATE UNIQUE INDEX no_twins ON jobs (type, payload)")
    desk.put(payload="[1]")

    with pytest.raises(Conflict, match="UNIQUE rule"):
        desk.put(payload="[1]")
    assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 1)]
