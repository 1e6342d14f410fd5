"""Who gets which job, and in what order."""

from __future__ import annotations

import random

import pytest

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done
from tests.store.kit import LOCK, NOW, T0, Desk


def ids(desk: Desk, *types: str, want: int = 1000, **options: object) -> list[int]:
    return [claim.job_id for claim in desk.claim(types or ("tag",), want, **options)]  # type: ignore[arg-type]


class TestOrder:
    @pytest.mark.parametrize("want", [1, 3, 1000])
    def test_priority_then_time_then_id_decide_across_types_and_requirements(self, desk: Desk, want: int) -> None:
        dice = random.Random(want)
        jobs = []
        for _ in range(120):
            priority, at = dice.choice([-100, -1, 0, 0, 5, 100]), T0 + dice.randrange(4)
            job_id = desk.put(
                dice.choice(["a", "b", "c"]), at, priority=priority, requires=dice.choice(["", "cpu", "gpu"])
            )
            jobs.append((-priority, at, job_id))
        order: list[int] = []
        while claims := desk.claim(["a", "b", "c"], want, capabilities="cpu gpu"):
            order += [claim.job_id for claim in claims]

        assert order == [job_id for _, _, job_id in sorted(jobs)]

    @pytest.mark.parametrize("seed", range(5))
    def test_one_job_at_a_time_is_always_the_best_although_others_keep_coming(self, desk: Desk, seed: int) -> None:
        dice = random.Random(seed)
        waiting: list[tuple[int, float, int]] = []
        for _ in range(150):
            for _ in range(dice.choice([0, 0, 1, 2])):
                priority, at = dice.choice([0, 0, 0, -5, 7]), T0 + dice.randrange(3)
                requires = dice.choice(["", "", "", "", "cpu"])
                waiting.append((-priority, at, desk.put("a", at, priority=priority, requires=requires)))
            waiting.sort()
            expected = [waiting.pop(0)[2]] if waiting else []

            assert [claim.job_id for claim in desk.claim(["a"], 1, capabilities="cpu")] == expected


@pytest.mark.parametrize("want", [1, 1000])
class TestWhatIsDue:
    """One job of one type is claimed in a shorter way than several."""

    def test_what_is_not_due_or_cannot_be_run_or_is_not_wanted_holds_nobody_up(self, desk: Desk, want: int) -> None:
        desk.put(at=NOW + 5, priority=100)
        desk.put(requires="gpu", priority=100)
        desk.put("caption", priority=100)
        due = desk.put(priority=-100)

        assert ids(desk, want=want, capabilities="cpu") == [due]
        assert ids(desk, want=want, owner="w2", now=NOW + 4.999) == []
        assert len(ids(desk, want=want, now=NOW + 5)) == 1

    def test_a_paused_type_waits_until_it_is_resumed(self, desk: Desk, want: int) -> None:
        desk.put()
        waiting = desk.put()
        claim = desk.one()
        desk.operations.controls.pause("tag", NOW)

        assert desk.settle_and_claim(done(claim, None), want=want).claims == []
        assert ids(desk, "tag", "caption", want=want) == []
        assert desk.operations.controls.resume("tag") is True
        assert ids(desk, want=want) == [waiting]


class TestCapabilities:
    @pytest.mark.parametrize(
        ("requires", "capabilities", "fits"),
        [
            ("", "", True),
            ("", "gpu", True),
            ("gpu", "", False),
            ("gpu", "cpu gpu tag@2", True),
            ("b a", "a b", True),
            ("  b   a b ", "b c a", True),
            ("a b", "a", False),
            ("gp", "gpu", False),
        ],
    )
    def test_requirements_are_matched_as_sets_whatever_their_order(
        self, desk: Desk, requires: str, capabilities: str, fits: bool
    ) -> None:
        job_id = desk.put(requires=requires)

        assert ids(desk, capabilities=capabilities) == ([job_id] if fits else [])


class TestTheClaim:
    def test_a_claim_says_all_that_a_worker_needs(self, desk: Desk) -> None:
        job_id = desk.put(payload="[1]", max_attempts=9)

        claim = desk.one()

        assert claim == (job_id, 1, "tag", "[1]", 1, 9, 0, T0)

    def test_the_row_says_who_holds_it_and_until_when(self, desk: Desk) -> None:
        job_id = desk.put()
        desk.one(owner="w7")

        job = desk.job(job_id)
        assert (job.status, job.locked_by, job.locked_at) == (Status.RUNNING, "w7", NOW)
        assert (job.lock_expires_at, job.claim_token, job.attempts) == (NOW + LOCK, 1, 1)
        assert job.started_at == NOW


class TestExchange:
    def test_a_child_of_a_completion_can_be_claimed_in_the_same_exchange(self, desk: Desk) -> None:
        desk.put()
        claim = desk.one()

        settle_and_claim = desk.settle_and_claim(
            done(claim, None, children=(NewJob("tag", "[2]", scheduled_at=T0),)), want=5
        )

        assert [c.payload for c in settle_and_claim.claims] == ["[2]"]

    def test_a_child_that_the_database_refuses_fails_its_parent_and_holds_up_nobody(self, desk: Desk) -> None:
        first, second = desk.put(), desk.put()
        refused = done(desk.one(), None, children=(NewJob("tag", "{}", priority=101),))

        settle_and_claim = desk.settle_and_claim(refused, want=5)

        assert ([c.job_id for c in settle_and_claim.claims], settle_and_claim.lost) == ([second], [])
        assert desk.status(first) is Status.FAILED
        assert "refused" in str(desk.job(first).last_error)
