"""What the maintainer asks of a store: the dead, the expired, the registry, pruning, measuring."""

from __future__ import annotations

import pytest

from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.settlement import RetryPolicy, Settlement, crashed, done, failed, released
from supervisor.store.base import Expired, JobSelector
from tests.store.kit import (
    BROKEN,
    LOCK,
    NOW,
    POLICY,
    T0,
    Desk,
    commits_nothing,
    supervisor_record,
    worker_record,
)


def crash(claim: Claim, owner: str = "") -> Settlement:
    return crashed(claim, BROKEN, POLICY, 3, chance=0.5)


class TestTheDead:
    def test_what_a_worker_holds_comes_in_the_order_in_which_it_runs_it(self, desk: Desk) -> None:
        low, high, early = desk.put(), desk.put(priority=5), desk.put(at=T0 - 1)
        claims = desk.claim(want=10)
        desk.put()
        desk.claim(owner="w2")

        assert [claim.job_id for claim in claims] == [high, early, low]
        assert desk.maintenance.locks.held_by("w1") == claims
        assert desk.maintenance.locks.held_by("nobody") == []

    def test_a_dead_workers_claims_are_settled_and_it_is_struck_off(self, desk: Desk) -> None:
        desk.claims.register(worker_record("w1"))
        begun, waiting = desk.put(), desk.put()
        first, second = desk.claim(want=2)

        settled = desk.maintenance.locks.settle_dead("w1", [crash(first), released(second)], NOW, worker="tag-1")

        assert settled == 2
        assert (desk.job(begun).crashes, desk.job(begun).attempts) == (1, 0)
        assert (desk.job(waiting).crashes, desk.job(waiting).attempts) == (0, 0)
        assert desk.operations.jobs.attempts(begun)[0].worker == "tag-1"
        assert desk.maintenance.registry.worker("w1") is None
        assert desk.maintenance.locks.held_by("w1") == []

    def test_a_kill_meant_for_a_job_no_longer_current_charges_nobody(self, desk: Desk) -> None:
        job_id = desk.put()
        old = desk.one()
        desk.settle(released(old))
        current = desk.one()
        before = desk.job(job_id)

        assert desk.maintenance.locks.settle_dead("w1", [crash(old)], NOW) == 0
        assert desk.job(job_id) == before
        assert desk.settle(done(current, None)) == []


class TestLocks:
    def test_only_locks_that_run_out_soon_are_renewed(self, desk: Desk) -> None:
        soon = desk.put()
        desk.one(lock_time=10)
        later = desk.put()
        desk.one(lock_time=100)
        other = desk.put()
        desk.one(owner="w2", lock_time=10)

        assert desk.maintenance.locks.renew(["w1", "idle"], NOW + 50, NOW + 200) == 1

        expiries = [desk.job(job_id).lock_expires_at for job_id in (soon, later, other)]
        assert expiries == [NOW + 200, NOW + 100, NOW + 10]

    def test_a_renewal_that_nobody_needs_writes_nothing(self, desk: Desk) -> None:
        desk.put()
        desk.one(lock_time=100)

        def renew() -> None:
            assert desk.maintenance.locks.renew(["w1"], NOW + 50, NOW + 200) == 0

        assert commits_nothing(desk.engine, renew)

    def test_expired_claims_are_seen_exactly_as_they_are(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.one()

        assert desk.maintenance.locks.expired(NOW + LOCK, 10) == []
        assert desk.maintenance.locks.expired(NOW + LOCK + 1, 10) == [Expired(job_id, 1, "w1", NOW + LOCK, NOW)]

    def test_expired_claims_are_bounded(self, desk: Desk) -> None:
        for _ in range(5):
            desk.put()
        desk.claim(want=5)

        assert len(desk.maintenance.locks.expired(NOW + LOCK + 1, 3)) == 3

    def test_a_reclaim_takes_back_an_unchanged_claim_and_refuses_its_late_result(self, desk: Desk) -> None:
        job_id = desk.put()
        claim = desk.one()
        [seen] = desk.maintenance.locks.expired(NOW + LOCK + 1, 10)

        assert desk.maintenance.locks.reclaim(seen, crash, NOW + LOCK + 1) is True

        assert (desk.status(job_id), desk.job(job_id).crashes) == (Status.PENDING, 1)
        assert desk.settle(done(claim, None)) == [job_id]

    @pytest.mark.parametrize("change", ["renewed", "settled", "claimed anew", "deleted"])
    def test_a_claim_that_changed_since_it_was_seen_is_left_alone(self, desk: Desk, change: str) -> None:
        job_id = desk.put()
        claim = desk.one()
        [seen] = desk.maintenance.locks.expired(NOW + LOCK + 1, 10)
        if change == "renewed":
            desk.maintenance.locks.renew(["w1"], NOW + 1000, NOW + 2000)
        elif change == "settled":
            desk.settle(done(claim, None))
        elif change == "claimed anew":
            desk.settle(released(claim))
            desk.one(lock_time=LOCK)
        else:
            desk.settle(done(claim, None))
            desk.operations.actions.delete([job_id])
        before = desk.producer.job(job_id)

        assert desk.maintenance.locks.reclaim(seen, crash, NOW + LOCK + 1) is False
        assert desk.producer.job(job_id) == before

    def test_the_policy_is_asked_with_the_claim_and_its_owner(self, desk: Desk) -> None:
        desk.put(payload="[7]")
        claim = desk.one(owner="w9")
        [seen] = desk.maintenance.locks.expired(NOW + LOCK + 1, 10)
        asked = []

        def settle(claim: Claim, owner: str) -> Settlement:
            asked.append((claim, owner))
            return crash(claim)

        desk.maintenance.locks.reclaim(seen, settle, NOW)
        assert asked == [(claim, "w9")]


class TestRegistry:
    def test_a_supervisor_and_its_workers_are_found_again(self, desk: Desk) -> None:
        record = supervisor_record("s1", desk.engine, "/nowhere/owner")
        workers = [worker_record("w1", policy='{"x": 1}'), worker_record("w2")]
        desk.maintenance.registry.register(record)
        desk.maintenance.registry.register(record)  # again, after a restart of the maintainer
        for worker in workers:
            desk.claims.register(worker)

        assert desk.maintenance.registry.supervisors() == desk.operations.registry.supervisors() == [record]
        assert sorted(desk.maintenance.registry.workers_of("s1"), key=lambda w: w.incarnation) == workers
        assert desk.maintenance.registry.worker("w1") == workers[0]
        assert desk.maintenance.registry.workers_of("s2") == []

        desk.maintenance.registry.forget("s1", NOW)
        assert desk.maintenance.registry.supervisors() == []

    def test_running_jobs_that_somebody_wants_stopped_are_listed(self, desk: Desk) -> None:
        job_id, second, other, *foreign = (desk.put() for _ in range(5))
        desk.claims.register(worker_record("w1", "s1"))
        desk.claim(want=3)
        desk.claim(want=2, owner="somebody")

        for cancelled in (job_id, second, *foreign):
            assert desk.operations.actions.cancel(cancelled, NOW) is Status.RUNNING
        assert desk.maintenance.controls.cancels("s1", 10) == [(job_id, 1, "w1"), (second, 1, "w1")]
        assert desk.maintenance.controls.cancels("s1", 1) == [(job_id, 1, "w1")]
        assert desk.maintenance.controls.cancels("s2", 10) == []
        assert desk.status(other) is Status.RUNNING

    def test_another_connections_commit_changes_the_version(self, desk: Desk) -> None:
        watcher = desk.engine.changes()
        before = watcher.version()

        desk.put()

        assert watcher.version() != before
        watcher.close()
        assert commits_nothing(desk.engine, lambda: None)


class TestMeasuring:
    def test_depth_counts_what_is_due_for_a_pool_and_says_since_when(self, desk: Desk) -> None:
        assert desk.maintenance.backlog.depth(JobSelector(("tag",)), NOW, 10) == (
            desk.operations.backlog.depth(JobSelector(("tag",)), NOW, 10)
        )
        for at in (T0 + 2, T0 + 1, T0 + 3):
            desk.put(at=at)
        desk.put(at=T0, requires="gpu")
        desk.put("caption", at=T0)
        desk.put(at=NOW + 20)
        desk.put(at=NOW + 10, priority=3)

        depth = desk.maintenance.backlog.depth(JobSelector(("tag",)), NOW, 100)

        assert (depth.due, depth.oldest, depth.next_due) == (3, T0 + 1, NOW + 10)
        assert desk.maintenance.backlog.depth(JobSelector(("tag",)), NOW, 2).due == 2
        assert desk.maintenance.backlog.depth(JobSelector(("tag",), "gpu"), NOW, 100).due == 4
        assert desk.operations.backlog.depth(JobSelector(("tag", "caption")), NOW, 100).due == 4

    def test_a_glance_sees_a_plain_job_that_is_due_and_no_other(self, desk: Desk) -> None:
        desk.put(requires="gpu")
        desk.put("caption")
        desk.put(at=NOW + 20)
        assert not desk.maintenance.backlog.any_due(JobSelector(("tag",), "gpu"), NOW)

        desk.put("tag")
        assert not desk.maintenance.backlog.any_due(
            JobSelector(("tag",)), NOW
        )  # some need more than it looks at: `depth` will tell
        assert desk.maintenance.backlog.any_due(JobSelector(("caption",)), NOW)

        desk.operations.controls.pause("caption", NOW)
        assert not desk.maintenance.backlog.any_due(JobSelector(("caption",)), NOW)

    def test_types_that_nobody_handles_are_named(self, desk: Desk) -> None:
        for type_ in ("tag", "caption", "nsfw", "tag"):
            desk.put(type_)
        desk.put("over")
        desk.finish(5)

        assert (
            desk.maintenance.backlog.unhandled(["tag"])
            == desk.operations.backlog.unhandled(["tag"])
            == ["caption", "nsfw"]
        )
        assert desk.maintenance.backlog.unhandled([]) == ["caption", "nsfw", "tag"]

    def test_a_burst_waits_for_due_jobs_and_for_retries_but_not_for_delayed_ones(self, desk: Desk) -> None:
        wanted = JobSelector(("tag",))
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is False
        desk.put(at=NOW + 1000)
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is False

        desk.put()
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is True
        desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is True
        desk.settle(done(desk.one(now=NOW + 10), None))
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is False

    def test_a_burst_waits_for_a_retry_only_if_it_is_due_soon(self, desk: Desk) -> None:
        wanted = JobSelector(("tag",))
        desk.put()
        policy = RetryPolicy(backoff="fixed", base=601.0, max=601.0, jitter=0.0)
        desk.settle(failed(desk.one(), BROKEN, policy, chance=0.5))
        assert desk.maintenance.backlog.unfinished(wanted, NOW, 600.0) is False
        assert desk.maintenance.backlog.unfinished(wanted, NOW + 1.0, 600.0) is True

    def test_a_burst_waits_for_what_a_supervisor_or_a_clock_lets_through_and_knows_the_others(self, desk: Desk) -> None:
        wanted, backlog = JobSelector(("tag",)), desk.maintenance.backlog
        desk.put(at=NOW + 60, extra={"status": "held", "hold": "due"})
        stuck = desk.put(extra={"status": "held", "hold": "after"})
        other = desk.put("mail", extra={"status": "held", "hold": "key"})
        assert not backlog.unfinished(wanted, NOW, 600.0)
        assert backlog.left_behind(["tag"], 9) == [stuck]
        assert backlog.unfinished(wanted, NOW + 60, 600.0)
        far = desk.put(at=NOW + 601, extra={"hold": ""})
        assert not backlog.unfinished(wanted, NOW, 600.0)
        assert backlog.left_behind(["tag", "mail"], 9) == [stuck, other, far]
        assert backlog.unfinished(wanted, NOW + 1, 600.0)

    def test_a_burst_does_not_wait_for_what_its_workers_cannot_run(self, desk: Desk) -> None:
        desk.put(requires="gpu")

        assert desk.maintenance.backlog.unfinished(JobSelector(("tag",), "cpu"), NOW, 600.0) is False
        assert desk.maintenance.backlog.unfinished(JobSelector(("tag",), "gpu"), NOW, 600.0) is True

    def test_progress_counts_what_waits_and_what_went_wrong_since(self, desk: Desk) -> None:
        for _ in range(4):
            desk.put()
        desk.put("caption")
        first, second = desk.claim(want=2)
        desk.settle(failed(first, BROKEN, POLICY, chance=0.5, permanent=True), now=NOW + 5)
        desk.settle(Settlement(second.job_id, second.token, Status.QUARANTINED), now=NOW + 6)

        assert desk.maintenance.backlog.progress_of(["tag"], NOW) == (2, 2)
        assert desk.maintenance.backlog.progress_of(["tag"], NOW + 6) == (2, 1)
        assert desk.maintenance.backlog.progress_of(["caption", "tag"], NOW + 7) == (3, 0)


class TestPruning:
    def walk(self, desk: Desk, limit: int, done_before: float, failed_before: float) -> int:
        deleted, after = 0, 0
        for _ in range(100):
            count, after = desk.maintenance.finished.prune(after, limit, done_before, failed_before)
            deleted += count
            if after == 0:
                return deleted
        raise AssertionError("the walk never ended")

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    def test_only_finished_jobs_past_their_retention_are_deleted(self, desk: Desk, limit: int) -> None:
        ends = [Status.DONE, Status.FAILED, Status.QUARANTINED]
        kept, gone = [desk.put("waiting")], []
        for end in ends:
            for at in (NOW, NOW + 100):
                job_id = desk.put(f"type-{at}-{end.value}")
                desk.finish(job_id, end, at=at)
                (gone if at == NOW else kept).append(job_id)
        desk.put("held")
        [held] = desk.claim(["held"])

        assert self.walk(desk, limit, NOW + 50, NOW + 50) == len(gone)

        assert all(desk.producer.job(job_id) for job_id in [*kept, held.job_id])
        assert not any(desk.producer.job(job_id) for job_id in gone)

    def test_a_deleted_jobs_errors_go_with_it(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.finish(job_id, Status.FAILED)
        assert desk.operations.jobs.attempts(job_id)

        self.walk(desk, 10, NOW + 1, NOW + 1)

        assert desk.operations.jobs.attempts(job_id) == []

    def test_one_look_is_bounded_in_rows(self, desk: Desk) -> None:
        ids = desk.producer.enqueue([NewJob("tag", "{}", scheduled_at=T0)] * 10)
        desk.settle(*(done(claim, None) for claim in desk.claim(want=10)))

        assert desk.maintenance.finished.prune(0, 4, NOW + 1, NOW + 1) == (4, ids[3])


@pytest.mark.parametrize("posted", [False, True])
def test_a_claim_of_nothing_wakes_nobody(desk: Desk, posted: bool) -> None:
    def claim() -> None:
        found = desk.claims.settle_and_claim("w1", [], JobSelector(("tag",)), 1, LOCK, NOW, posted=posted)
        assert found.claims == []

    assert commits_nothing(desk.engine, claim)
