"""A pool with `min_priority` takes, counts and waits for jobs of this priority or a higher one, and for no other."""

from __future__ import annotations

import random

import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import done, failed
from supervisor.store.base import Cursor, JobSelector
from tests.store.kit import BROKEN, LOCK, NOW, POLICY, T0, Desk

URGENT = JobSelector(("tag",), "", 10)


class TestClaims:
    @pytest.mark.parametrize("want", [1, 3, 1000])
    @pytest.mark.parametrize("least", [-100, -3, 0, 10, 100])
    def test_nothing_below_is_claimed_whatever_is_wanted(self, desk: Desk, least: int, want: int) -> None:
        dice = random.Random(least * 1000 + want)
        urgent = []
        for _ in range(60):
            priority, at = dice.choice([-100, -3, 0, 9, 10, 11, 100]), T0 + dice.randrange(4)
            job_id = desk.put(dice.choice("ab"), at, priority=priority, requires=dice.choice(["", "cpu", "gpu"]))
            if priority >= least:
                urgent.append((-priority, at, job_id))
        order: list[int] = []
        while claims := desk.claim("ab", want, capabilities="cpu gpu", min_priority=least):
            order += [claim.job_id for claim in claims]

        assert order == [job_id for _, _, job_id in sorted(urgent)]

    def test_one_store_serves_both_lanes_in_any_order(self, desk: Desk) -> None:
        dice = random.Random(7)
        waiting: dict[int, int] = {}
        for _ in range(200):
            if dice.random() < 0.6:
                priority = dice.choice([0, 0, 0, 5, 10, 20])
                waiting[desk.put(priority=priority)] = priority
            least = dice.choice([None, 10])
            able = [job for job in waiting if least is None or waiting[job] >= least]
            best = min(able, key=lambda job: (-waiting[job], job), default=None)

            assert [claim.job_id for claim in desk.claim(min_priority=least)] == ([] if best is None else [best])
            waiting.pop(best or 0, None)

    def test_what_is_not_due_or_paused_holds_nobody_up(self, desk: Desk) -> None:
        desk.put(priority=50, at=NOW + 5)
        due, other = desk.put(priority=10), desk.put("other", priority=10)
        desk.operations.controls.pause("tag", NOW)

        assert [claim.job_id for claim in desk.claim(("tag", "other"), 9, min_priority=10)] == [other]
        desk.operations.controls.resume("tag")
        assert desk.one(min_priority=10).job_id == due

    def test_what_is_settled_with_the_claim_is_settled_although_nothing_is_urgent(self, desk: Desk) -> None:
        urgent = desk.put(priority=10)
        desk.put(priority=9)
        claim = desk.one(min_priority=10)
        exchange = desk.claims.settle_and_claim("w1", [done(claim, None)], URGENT, 1, LOCK, NOW)

        assert (exchange.claims, exchange.lost) == ([], [])
        assert desk.status(urgent) is Status.DONE

    @pytest.mark.parametrize("want", [1, 9])
    def test_a_worker_that_was_woken_in_vain_takes_nothing_below(self, desk: Desk, want: int) -> None:
        desk.put(priority=0)

        assert desk.claims.settle_and_claim("w1", [], URGENT, want, LOCK, NOW, posted=True).claims == []
        job_id = desk.put(priority=10)
        (claim,) = desk.claims.settle_and_claim("w1", [], URGENT, want, LOCK, NOW, posted=True).claims
        assert claim.job_id == job_id


class TestBacklog:
    def test_only_urgent_jobs_are_due(self, desk: Desk) -> None:
        def depths(due: int, oldest: float | None, next_due: float | None) -> bool:
            backlogs = (desk.maintenance.backlog, desk.operations.backlog)
            return all(backlog.depth(URGENT, NOW, 100) == (due, oldest, next_due) for backlog in backlogs)

        for at in (T0, T0, NOW + 5):
            desk.put(priority=9, at=at)
        assert not desk.maintenance.backlog.any_due(URGENT, NOW)
        assert depths(0, None, None)
        desk.put(priority=10, at=NOW + 7)
        assert depths(0, None, NOW + 7)
        desk.put(priority=11)
        desk.put(priority=20, at=T0 + 1)
        assert depths(2, T0, NOW + 7)
        desk.put(priority=10)
        assert not desk.maintenance.backlog.any_due(URGENT._replace(min_priority=21), NOW)

    def test_a_burst_waits_for_urgent_jobs_alone(self, desk: Desk) -> None:
        def unfinished() -> bool:
            return desk.maintenance.backlog.unfinished(URGENT, NOW, 600.0)

        desk.put(priority=9)
        desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))  # it is tried again in 10 s
        assert not unfinished()
        desk.put(priority=10)
        assert unfinished()
        desk.settle(failed(desk.one(min_priority=10), BROKEN, POLICY, chance=0.5))
        assert unfinished()

    def test_failed_jobs_below_are_left_to_other_pools(self, desk: Desk) -> None:
        jobs = [desk.put(priority=priority) for priority in (9, 10)]
        for _ in jobs:
            desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5, permanent=True))
        redriven = desk.maintenance.finished.redrive(URGENT, 1, Cursor(0.0, 0), NOW + 10, 100, NOW + 10)

        assert redriven.jobs == jobs[1:]
