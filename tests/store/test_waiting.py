"""What a job waits for, as far as the store knows: jobs before it, and the gate at which it is held."""

from __future__ import annotations

import random

import pytest

from supervisor.domain.errors import Conflict
from supervisor.domain.job import Status
from supervisor.ops import commands
from supervisor.store.base import Filter, JobSelector
from tests.store.kit import NOW, T0, Desk, execute

LATER = 4e9  # Unix seconds


class TestAhead:
    @pytest.mark.parametrize("least", [None, 0])
    def test_so_many_are_claimed_before_it_also_of_those_that_are_due_at_the_same_time(
        self, desk: Desk, least: int | None
    ) -> None:
        dice = random.Random(least)
        ids = []
        for _ in range(60):
            at = dice.choice([T0, T0, T0 + 1, NOW + 5])
            requires, priority = dice.choice(["", "cpu", "gpu"]), dice.choice([-3, 0, 0, 9])
            ids.append(desk.put(dice.choice("abc"), at, priority=priority, requires=requires))
        desk.operations.controls.pause("c", NOW)
        wanted, jobs = JobSelector(("a", "b", "c"), "cpu", least), [desk.job(job_id) for job_id in ids]
        ahead = {job.id: desk.operations.backlog.ahead(job, wanted, NOW, 1000) for job in jobs}
        few = {job.id: desk.operations.backlog.ahead(job, wanted, NOW, 3) for job in jobs}
        order: list[int] = []
        while claims := desk.claim("abc", capabilities="cpu", min_priority=least):
            order += [claim.job_id for claim in claims]

        assert len(order) > 10
        assert [ahead[job_id] for job_id in order] == [*range(len(order))]
        assert [few[job_id] for job_id in order] == [min(3, place) for place in range(len(order))]


class TestHeld:
    def held(self, desk: Desk, hold: str, **fields: object) -> int:
        job_id = desk.put(**fields)  # type: ignore[arg-type]
        execute(desk.engine.url, "INSERT INTO job_limits (type, max_running, per_key) VALUES ('tag', 0, 0)")
        execute(
            desk.engine.url, f"UPDATE jobs SET status = 'held', hold = {hold}, turn = 1, concurrency_key = 'user:42'"
        )
        return job_id

    def test_it_is_counted_and_listed_apart_and_nobody_claims_it(self, desk: Desk) -> None:
        held, other = self.held(desk, "'key'"), desk.put("mail")
        assert sorted(desk.operations.statistics.open_counts()) == [
            ("mail", Status.PENDING, 1),
            ("tag", Status.HELD, 1),
        ]
        assert desk.operations.jobs.ids(Filter((Status.HELD,))) == [held]
        assert [claim.job_id for claim in desk.claim(("tag", "mail"), want=9)] == [other]

    def test_it_can_be_cancelled_but_neither_be_retried_nor_deleted(self, desk: Desk) -> None:
        held = self.held(desk, "'key'")
        refused: tuple[commands.Change, ...] = ("retry", "delete")
        for change in refused:
            with pytest.raises(Conflict, match=f"job {held} is held; only a"):
                commands.check(desk.operations, change, [held])
            assert commands.change(desk.operations, change, [held], NOW) == (0, 0)
        assert desk.operations.actions.cancel(held, NOW) is Status.CANCELLED
        assert desk.status(held) is Status.CANCELLED
