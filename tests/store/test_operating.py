"""What people do with jobs: list, retry, cancel, delete, pause, scale, reload, look."""

from __future__ import annotations

import pytest

from supervisor.domain.errors import Conflict, JobNotFound
from supervisor.domain.job import Status
from supervisor.domain.settlement import cancelled, crashed, done, failed, released
from supervisor.store.base import Filter
from tests.store.kit import BROKEN, NOW, POLICY, Desk


class TestRetry:
    @pytest.mark.parametrize("status", [Status.FAILED, Status.QUARANTINED])
    def test_a_retried_job_is_as_new_and_due_at_once(self, desk: Desk, status: Status) -> None:
        job_id = desk.put()
        desk.finish(job_id, status)

        assert desk.operations.actions.retry([job_id], NOW + 5).changed == 1

        job = desk.job(job_id)
        assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
        assert (job.scheduled_at, job.completed_at, job.result) == (NOW + 5, None, None)
        assert desk.one(now=NOW + 5).attempt == 1

    def test_neither_unfinished_nor_successful_jobs_are_retried_but_cancelled_ones(self, desk: Desk) -> None:
        finished, running = desk.put("a"), desk.put("b")
        desk.finish(finished)
        desk.claim(["b"])
        waiting = desk.put("c")

        assert desk.operations.actions.retry([finished, running, waiting, 4711], NOW).changed == 0
        desk.operations.actions.cancel(waiting, NOW)
        assert desk.operations.actions.retry([waiting], NOW).changed == 1
        assert desk.job(waiting).cancel_requested_at is None

    def test_one_job_is_retried_with_another_payload(self, desk: Desk) -> None:
        job_id = desk.put(payload='{"n": 1}')
        desk.finish(job_id, Status.FAILED)

        assert desk.operations.actions.rerun(job_id, NOW + 5, payload='{"n": 2}', done=False).changed == 1

        assert (desk.job(job_id).status, desk.job(job_id).payload) == (Status.PENDING, {"n": 2})
        assert desk.one(now=NOW + 5).payload == '{"n": 2}'

    def test_what_has_succeeded_runs_again_only_if_that_is_meant(self, desk: Desk) -> None:
        job_id = desk.put(payload='{"n": 1}')
        desk.finish(job_id)

        assert desk.operations.actions.rerun(job_id, NOW + 5, payload=None, done=False) == (0, {})
        assert desk.status(job_id) is Status.DONE
        assert desk.operations.actions.rerun(job_id, NOW + 5, payload=None, done=True).changed == 1

        job = desk.job(job_id)
        assert (job.status, job.payload, job.result, job.attempts) == (Status.PENDING, {"n": 1}, None, 0)

    @pytest.mark.long_on_postgres
    def test_more_jobs_than_fit_into_one_transaction(self, desk: Desk) -> None:
        for _ in range(1100):
            desk.put()
        for claim in desk.claim(want=1100):
            desk.operations.actions.cancel(claim.job_id, NOW)
        # All of them running: none may be retried or deleted.
        ids = desk.operations.jobs.ids(Filter((Status.RUNNING,)))
        assert (desk.operations.actions.retry(ids, NOW).changed, desk.operations.actions.delete(ids)) == (0, 0)
        desk.settle(*(done(claim, None) for claim in desk.maintenance.locks.held_by("w1")))

        assert desk.operations.actions.delete(ids) == 1100


class TestCancelAndDelete:
    def test_a_pending_job_is_cancelled_at_once_and_a_running_one_is_asked_to_stop(self, desk: Desk) -> None:
        running = desk.put()
        claim = desk.one()
        waiting = desk.put()
        answers = [desk.operations.actions.cancel(job_id, NOW) for job_id in (running, waiting)]
        assert answers == [Status.RUNNING, Status.CANCELLED]
        assert desk.operations.actions.cancel(running, NOW + 5) is Status.RUNNING

        assert (desk.status(running), desk.job(running).cancel_requested_at) == (Status.RUNNING, NOW)
        assert (desk.status(waiting), desk.job(waiting).completed_at) == (Status.CANCELLED, NOW)
        assert desk.claim() == []
        assert desk.settle(done(claim, '"ok"')) == []  # too late
        assert (desk.status(running), desk.job(running).result) == (Status.DONE, "ok")

    @pytest.mark.parametrize("end", ["released", "crashed", "failed", "cancelled"])
    def test_a_job_that_was_asked_to_stop_never_runs_again_whatever_its_run_ended_with(
        self, desk: Desk, end: str
    ) -> None:
        job_id = desk.put(unique_key="k")
        claim = desk.one()
        desk.operations.actions.cancel(job_id, NOW)
        ends = {
            "released": released(claim),
            "crashed": crashed(claim, BROKEN, POLICY, 3, chance=0.5),
            "failed": failed(claim, BROKEN, POLICY, chance=0.5),
            "cancelled": cancelled(claim),
        }
        assert desk.settle(ends[end], now=NOW + 5) == []

        job = desk.job(job_id)
        assert (job.status, job.completed_at, job.locked_by) == (Status.CANCELLED, NOW + 5, None)
        assert desk.claim(now=NOW + 1e6) == []
        assert desk.put(unique_key="k") != job_id

    def test_what_has_finished_or_never_was_cannot_be_cancelled(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.finish(job_id)

        with pytest.raises(Conflict, match="done"):
            desk.operations.actions.cancel(job_id, NOW)
        with pytest.raises(JobNotFound):
            desk.operations.actions.cancel(4711, NOW)

    def test_only_finished_jobs_are_deleted_with_their_errors(self, desk: Desk) -> None:
        failed_id, waiting = desk.put("a"), desk.put("b")
        desk.finish(failed_id, Status.FAILED)
        running = desk.put("c")
        desk.claim(["c"])

        assert desk.operations.actions.delete([failed_id, waiting, running, 4711]) == 1

        assert desk.producer.job(failed_id) is None
        assert desk.operations.jobs.attempts(failed_id) == []
        assert desk.operations.jobs.ids(Filter()) == [waiting, running]


class TestControls:
    def test_pausing_scaling_and_reloading_are_seen_by_everybody(self, desk: Desk) -> None:
        given = desk.operations.controls
        for workers in (3, 4):
            given.pause("tag", NOW)
            given.scale("tag", workers, NOW)
            given.request_reload(NOW)

        controls = desk.maintenance.controls.current()
        assert controls == given.current()
        assert (controls.paused, dict(controls.sizes), controls.reloads) == ({"tag"}, {"tag": 4}, 2)
        given.scale("tag", None, NOW)
        assert [given.resume("tag") for _ in range(2)] == [True, False]
        assert (given.current().paused, dict(given.current().sizes)) == (set(), {})

    def test_the_size_set_for_a_host_itself_counts_before_that_for_many(self, desk: Desk) -> None:
        controls = desk.operations.controls
        controls.scale("tag", 1, NOW)
        controls.scale("tag", 2, NOW, "*")
        controls.scale("tag", 3, NOW, "gpu-*")
        controls.scale("tag", 4, NOW, "gpu-1")
        controls.scale("tag", 0, NOW, "gpu-1")
        controls.scale("mail", 9, NOW, "web-1")
        seen = desk.maintenance.controls.current()
        assert [seen.size_on("tag", host) for host in ("gpu-1", "gpu-2", "web-1")] == [0, 3, 2]
        assert seen.size_on("mail", "gpu-1") is None

        controls.scale("tag", None, NOW, "gpu-1")
        assert desk.maintenance.controls.current().size_on("tag", "gpu-1") == 3
        controls.scale("tag", 5, NOW)  # everywhere: there too
        seen = desk.maintenance.controls.current()
        assert [seen.size_on("tag", host) for host in ("gpu-1", "gpu-2", "web-1")] == [5, 5, 5]
        controls.scale("tag", 2, NOW, "gpu-1")
        controls.scale("tag", None, NOW)
        assert desk.maintenance.controls.current().size_on("tag", "gpu-1") is None


class TestLooking:
    def test_failures_are_counted_by_type_since_a_time(self, desk: Desk) -> None:
        for type_, at in (("a", NOW), ("b", NOW), ("a", NOW + 5), ("b", NOW - 50)):
            job_id = desk.put(type_)
            desk.finish(job_id, Status.FAILED, at=at)

        assert desk.operations.statistics.failures(NOW) == [("a", 2), ("b", 1)]

    def test_speeds_come_from_done_jobs_slowest_first(self, desk: Desk) -> None:
        for type_, seconds in (("quick", 1.0), ("slow", 9.0), ("quick", 3.0)):
            desk.put(type_)
            claim = desk.one(types=[type_])
            desk.settle(done(claim, None, started_at=NOW), now=NOW + seconds)

        speeds = desk.operations.statistics.speeds()
        assert [(s.type, s.jobs, s.mean, s.longest) for s in speeds] == [
            ("slow", 1, 9.0, 9.0),
            ("quick", 2, 2.0, 3.0),
        ]
