"""What a run used and said is kept beside its job, written with its settlement and gone with it."""

from __future__ import annotations

import pytest

from supervisor.domain.job import Claim, NewJob, Run
from supervisor.domain.recovery import JobPolicy, settle_held
from supervisor.domain.settlement import Failure, Settlement, Usage, cancelled, crashed, done, failed, released
from tests.store.kit import BROKEN, NOW, POLICY, Desk, worker_record

USED = Usage(NOW - 2, 1.5, 0.25, 64 << 20, "tagging\n")
DIED = Failure("crash", "the worker was killed by SIGKILL", stderr="last words", peak_memory=1 << 30, duration=3.0)


def outcomes(desk: Desk, job_id: int) -> list[tuple[int, str]]:
    return [(run.attempt, run.outcome) for run in desk.operations.jobs.runs(job_id)]


class TestRows:
    def test_a_run_is_kept_with_what_it_used_and_said(self, desk: Desk) -> None:
        desk.claims.register(worker_record("w1", name="tag-1"))
        job_id = desk.put()
        claim = desk.one()
        desk.settle(done(claim, '"ok"', started_at=NOW - 2, usage=USED))

        assert desk.operations.jobs.runs(job_id) == [
            Run(job_id, claim.token, 1, "done", "tag-1", NOW - 2, 1.5, 0.25, 64 << 20, "tagging\n")
        ]
        assert desk.job(job_id).started_at == NOW - 2
        assert desk.operations.jobs.durations([job_id, 99]) == {job_id: 1.5}

    @pytest.mark.parametrize("result", [None, '"ok"'])
    def test_among_many_settled_together_each_run_goes_with_its_own_job(self, desk: Desk, result: str | None) -> None:
        jobs = [desk.put() for _ in range(6)]
        claims = desk.claim(want=6)
        spoken = {claim.job_id: Usage(NOW, log=f"job {claim.job_id}") for claim in claims[::2]}
        desk.settle(*(done(claim, result, usage=spoken.get(claim.job_id)) for claim in claims))

        logs = {job_id: [run.log for run in desk.operations.jobs.runs(job_id)] for job_id in jobs}
        assert logs == {job_id: [f"job {job_id}"] if job_id in spoken else [] for job_id in jobs}

    def test_the_latest_runs_of_all_jobs_are_found_in_their_order(self, desk: Desk) -> None:
        latest = desk.operations.jobs.latest_runs
        assert latest(None, 5) == []
        jobs = [desk.put() for _ in range(4)]
        for claim in desk.claim(want=4):
            desk.settle(done(claim, None, usage=Usage(NOW, log="words")))

        found = latest(None, 3)
        assert [recorded.run.job_id for recorded in found] == jobs[1:]
        assert latest(found[0].number, 9) == found[1:]
        assert latest(found[-1].number, 9) == []
        desk.operations.actions.delete(jobs[2:])
        again = desk.put()  # whose run may have the number of a deleted one
        desk.settle(done(desk.one(), None, usage=Usage(NOW, log="words")))
        desk.operations.actions.delete([again])
        last = desk.put()
        assert latest(found[-1].number, 9) == []
        desk.settle(done(desk.one(), None, usage=Usage(NOW, log="words")))
        desk.put()
        assert [recorded.run.job_id for recorded in latest(found[0].number, 9)] == [last]

    def test_each_attempt_has_a_run_of_its_own(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5)._replace(usage=USED))
        desk.settle(crashed(desk.one(now=NOW + 100), BROKEN, POLICY, 3, chance=0.5))
        desk.settle(cancelled(desk.one(now=NOW + 200), usage=USED))

        assert outcomes(desk, job_id) == [(1, "exception"), (2, "exception"), (2, "cancelled")]

    def test_a_run_that_did_not_succeed_has_a_row_with_what_its_failure_knows(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(crashed(desk.one(), DIED, POLICY, 3, chance=0.5), now=NOW + 5)

        [run] = desk.operations.jobs.runs(job_id)
        assert (run.outcome, run.started_at, run.duration) == ("crash", NOW + 2, 3.0)
        assert (run.cpu_time, run.peak_memory) == (None, 1 << 30)
        assert run.log is None  # the last words stand in job_errors

    def test_without_any_knowledge_a_run_began_with_its_claim(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5), now=NOW + 5)

        assert [run.started_at for run in desk.operations.jobs.runs(job_id)] == [NOW]

    def test_what_never_ran_has_no_run(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.settle(released(desk.one()))
        desk.settle(done(desk.one(), None))

        assert desk.operations.jobs.runs(job_id) == []

    @pytest.mark.parametrize(("charge", "outcome"), [("cancel", "cancelled"), ("nothing", "released")])
    def test_where_a_death_leaves_no_error_the_last_words_are_the_runs(
        self, desk: Desk, charge: str, outcome: str
    ) -> None:
        begun, waiting = desk.put(), desk.put()
        claims = desk.claim(want=2)
        settlements = settle_held(claims, claims[0][:2], charge, DIED, JobPolicy(), 0.5)  # type: ignore[arg-type]
        desk.maintenance.locks.settle_dead("w1", settlements, NOW + 5, worker="tag-1")

        [run] = desk.operations.jobs.runs(begun)
        assert (run.outcome, run.worker, run.log, run.peak_memory) == (outcome, "tag-1", "last words", 1 << 30)
        assert desk.operations.jobs.attempts(begun) == []
        assert desk.operations.jobs.runs(waiting) == []


def ends(claim: Claim) -> list[Settlement]:
    return [
        done(claim, None, usage=USED),
        done(claim, None, children=(NewJob("child", "{}"),), usage=USED),
        failed(claim, BROKEN, POLICY, chance=0.5),
        cancelled(claim, usage=USED),
    ]


@pytest.mark.parametrize("end", range(4))
def test_a_lost_claim_leaves_no_run(desk: Desk, end: int) -> None:
    job_id = desk.put()
    stale = desk.one()
    desk.settle(released(stale))
    desk.one()

    assert desk.settle(ends(stale)[end]) == [job_id]
    assert desk.operations.jobs.runs(job_id) == []


def run_of(desk: Desk) -> int:
    """A job that is done, with a run worth a row."""
    job_id = desk.put()
    desk.settle(done(desk.one(), None, usage=USED))
    assert len(desk.operations.jobs.runs(job_id)) == 1
    return job_id


def test_runs_are_deleted_with_their_job(desk: Desk) -> None:
    deleted, kept = run_of(desk), run_of(desk)
    desk.operations.actions.delete([deleted])

    assert (outcomes(desk, deleted), outcomes(desk, kept)) == ([], [(1, "done")])


def test_runs_are_pruned_with_their_job(desk: Desk) -> None:
    pruned, waiting = run_of(desk), desk.put()
    desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
    desk.maintenance.finished.prune(0, 10, NOW + 1, NOW + 1)

    assert (outcomes(desk, pruned), outcomes(desk, waiting)) == ([], [(1, "exception")])
