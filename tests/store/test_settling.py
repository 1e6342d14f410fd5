"""The end of a run: one recorded outcome a job, and only by the claim that is current."""

from __future__ import annotations

import pytest

from supervisor.domain.job import Claim, Delay, NewJob, Status
from supervisor.domain.settlement import (
    MAX_MESSAGE,
    Failure,
    Settlement,
    cancelled,
    crashed,
    done,
    failed,
    released,
    suspected,
)
from tests.store.kit import BROKEN, NOW, POLICY, T0, Desk


def fail(claim: Claim, **options: object) -> Settlement:
    return failed(claim, BROKEN, POLICY, chance=0.5, **options)  # type: ignore[arg-type]


class TestEnds:
    def test_done_records_the_result_and_ends_the_claim(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(done(desk.one(), '{"tags":["cat"]}', started_at=NOW + 1, progress=1.0), now=NOW + 3)

        job = desk.job(job_id)
        assert (job.status, job.result, job.progress) == (Status.DONE, {"tags": ["cat"]}, 1.0)
        assert (job.started_at, job.completed_at, job.attempts) == (NOW + 1, NOW + 3, 1)
        assert (job.locked_by, job.locked_at, job.lock_expires_at, job.last_error) == (None,) * 4

    def test_progress_is_kept_for_the_claim_alone_and_its_text_while_it_lasts(self, desk: Desk) -> None:
        job_id = desk.put()
        claim = desk.one()
        run = (job_id, claim.token)
        desk.claims.show_progress("w1", [run], 0.5, "half", NOW + 1)
        job = desk.job(job_id)
        assert (job.progress, job.progress_text, job.updated_at) == (0.5, "half", NOW + 1)
        desk.claims.show_progress("w2", [run], 0.6, "another's", NOW + 2)
        desk.claims.show_progress("w1", [(job_id, claim.token + 1)], 0.7, "another claim's", NOW + 2)
        assert desk.job(job_id).progress == 0.5
        desk.settle(done(claim, None, started_at=NOW, progress=0.5), now=NOW + 3)
        desk.claims.show_progress("w1", [run], 0.8, "late", NOW + 4)
        assert (desk.job(job_id).progress, desk.job(job_id).progress_text) == (1.0, None)

    def test_a_failed_attempt_is_due_again_after_its_delay(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(fail(desk.one()))

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.scheduled_at) == (Status.PENDING, 1, NOW + 10)
        assert (job.last_error, job.completed_at, job.locked_by) == (BROKEN.message, None, None)
        assert desk.claim(now=NOW + 9.9) == []
        assert desk.one(now=NOW + 10).attempt == 2

    def test_with_its_attempts_used_up_a_job_is_failed(self, desk: Desk) -> None:
        job_id = desk.put()
        for attempt in (1, 2, 3):
            claim = desk.one(now=NOW + 100 * attempt)
            assert claim.attempt == attempt
            desk.settle(fail(claim), now=NOW + 100 * attempt)

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.completed_at) == (Status.FAILED, 3, NOW + 300)
        assert [a.attempt for a in desk.operations.jobs.attempts(job_id)] == [1, 2, 3]

    def test_each_failed_attempt_is_kept_with_its_details(self, desk: Desk) -> None:
        job_id = desk.put()
        failure = Failure("exit", "x" * 5000, "trace", 3, "SIGKILL", "tail", 1 << 30, 1.5)
        desk.settle(failed(desk.one(), failure, POLICY, chance=0.5))

        [attempt] = desk.operations.jobs.attempts(job_id)
        assert (attempt.job_id, attempt.attempt, attempt.kind) == (job_id, 1, "exit")
        assert len(attempt.message) == MAX_MESSAGE
        assert (attempt.traceback, attempt.exit_code, attempt.signal) == ("trace", 3, "SIGKILL")
        assert (attempt.stderr, attempt.peak_memory, attempt.duration) == ("tail", 1 << 30, 1.5)
        assert attempt.created_at == NOW

    def test_a_release_gives_the_attempt_back_and_keeps_the_place(self, desk: Desk) -> None:
        job_id, later = desk.put(), desk.put()
        desk.settle(released(desk.one()))

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.scheduled_at) == (Status.PENDING, 0, T0)
        assert [claim.job_id for claim in desk.claim(want=2)] == [job_id, later]

    def test_a_crash_is_charged_as_a_crash_and_gives_the_attempt_back(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(crashed(desk.one(), BROKEN, POLICY, 3, chance=0.5))

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.crashes, job.scheduled_at) == (Status.PENDING, 0, 1, T0)
        assert desk.one().crashes == 1

    def test_crashes_used_up_quarantine_a_job(self, desk: Desk) -> None:
        job_id = desk.put()
        for _ in range(3):
            desk.settle(crashed(desk.one(now=NOW + 1000), BROKEN, POLICY, 3, chance=0.5), now=NOW)

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.crashes) == (Status.QUARANTINED, 0, 3)
        assert desk.claim(now=NOW + 1e6) == []

    def test_success_clears_the_last_error_and_keeps_the_attempts(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(fail(desk.one()))
        desk.settle(done(desk.one(now=NOW + 100), None))

        assert desk.job(job_id).last_error is None
        assert len(desk.operations.jobs.attempts(job_id)) == 1

    def test_the_delay_of_a_child_counts_from_the_completion(self, desk: Desk) -> None:
        desk.put()
        desk.settle(done(desk.one(), None, children=(NewJob("caption", "[1]", scheduled_at=Delay(60.0)),)), now=NOW + 5)

        assert [claim.due_at for claim in desk.claim(["caption"], now=NOW + 100)] == [NOW + 65]


def ends(claim: Claim) -> dict[str, Settlement]:
    return {
        "done": done(claim, '"late"'),
        "done with children": done(claim, '"late"', children=(NewJob("child", "{}"),)),
        "failed": fail(claim, permanent=True),
        "released": released(claim),
        "crashed": crashed(claim, BROKEN, POLICY, 3, chance=0.5),
        "cancelled": cancelled(claim),
    }


class TestLostClaims:
    @pytest.mark.parametrize("end", ["done", "done with children", "failed", "released", "crashed", "cancelled"])
    def test_a_stale_settlement_or_anothers_changes_nothing(self, desk: Desk, end: str) -> None:
        job_id = desk.put()
        stale = desk.one()
        desk.settle(released(stale))
        current = desk.one()
        before = desk.job(job_id)

        assert desk.settle(ends(stale)[end]) == [job_id]
        assert desk.settle(ends(current)[end], owner="w2") == [job_id]

        assert desk.job(job_id) == before
        assert desk.operations.jobs.attempts(job_id) == []
        assert desk.operations.statistics.counts() == [("tag", Status.RUNNING, 1)]
        assert desk.settle(done(current, '"current"')) == []

    @pytest.mark.parametrize("first", ["done", "failed", "cancelled"])
    @pytest.mark.parametrize("second", ["done", "done with children", "failed", "released"])
    def test_a_claim_is_settled_at_most_once(self, desk: Desk, first: str, second: str) -> None:
        job_id = desk.put()
        claim = desk.one()
        assert desk.settle(ends(claim)[first]) == []
        before = desk.job(job_id)

        assert desk.settle(ends(claim)[second]) == [job_id]
        assert desk.job(job_id) == before

    def test_a_job_that_is_gone_is_a_lost_claim(self, desk: Desk) -> None:
        ghost = Claim(4711, 1, "tag", "{}", 1, None, 0)

        assert desk.settle(done(ghost, None), fail(ghost)) == [4711, 4711]

    def test_a_settlement_given_twice_counts_once(self, desk: Desk) -> None:
        job_id = desk.put()
        claim = desk.one()

        assert desk.settle(done(claim, None), done(claim, None)) == [job_id]
        assert desk.status(job_id) is Status.DONE

    def test_one_lost_claim_among_many_costs_the_others_nothing(self, desk: Desk) -> None:
        jobs = [desk.put() for _ in range(10)]
        claims = desk.claim(want=10)
        desk.settle(released(claims[3]))
        again = desk.one(owner="w2")
        assert again.job_id == jobs[3]

        assert desk.settle(*(done(claim, None) for claim in claims)) == [jobs[3]]

        statuses = [desk.status(job_id) for job_id in jobs]
        assert statuses == [Status.RUNNING if n == 3 else Status.DONE for n in range(10)]

    @pytest.mark.parametrize("result", [None, '"late"'])
    @pytest.mark.parametrize("owner", ["w1", "w2"])
    def test_old_claims_settled_together_are_all_lost(self, desk: Desk, owner: str, result: str | None) -> None:
        jobs = [desk.put() for _ in range(3)]
        old = desk.claim(want=3)
        desk.settle(*(released(claim) for claim in old))
        current = desk.claim(want=3, owner=owner)

        assert sorted(desk.settle(*(done(claim, result) for claim in old))) == jobs
        assert desk.settle(*(done(claim, result) for claim in current), owner=owner) == []


class TestBatches:
    def test_a_suspect_goes_back_uncharged_and_remembers_the_smallest_batch(self, desk: Desk) -> None:
        job_id, other = desk.put(), desk.put()
        desk.settle(*(suspected(claim, 16) for claim in desk.claim(want=2)))

        assert desk.claims.limits([job_id, other, 99]) == {job_id: 8, other: 8}
        assert (desk.status(job_id), desk.job(job_id).attempts, desk.job(job_id).crashes) == (Status.PENDING, 0, 0)

        desk.settle(suspected(desk.one(), 2))
        desk.settle(suspected(desk.one(), 5))
        assert desk.claims.limits([job_id, other]) == {job_id: 1, other: 8}

    def test_a_lost_claim_leaves_no_limit_and_a_deleted_job_neither(self, desk: Desk) -> None:
        job_id = desk.put()
        claim = desk.one()
        desk.settle(released(claim))
        assert desk.settle(suspected(claim, 16)) == [job_id]
        assert desk.claims.limits([job_id]) == {}

        desk.settle(suspected(desk.one(), 16))
        desk.finish(job_id)
        desk.operations.actions.delete([job_id])
        assert desk.claims.limits([job_id]) == {}
