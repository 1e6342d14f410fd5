"""Who gets which job, and in what order."""

from __future__ import annotations

import random

import pytest

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done
from tests.store.kit import LOCK, NOW, T0, Desk


def ids(desk: Desk, *types: str, **options: object) -> list[int]:
    return [claim.job_id for claim in desk.claim(types or ("tag",), 1000, **options)]  # type: ignore[arg-type]


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

    def test_all_two_hundred_and_one_priorities_are_ordered(self, desk: Desk) -> None:
        by_priority = {priority: desk.put(priority=priority) for priority in range(-100, 101)}

        assert ids(desk) == [by_priority[priority] for priority in range(100, -101, -1)]

    def test_no_more_than_wanted_are_claimed(self, desk: Desk) -> None:
        for _ in range(5):
            desk.put()

        assert [len(desk.claim(want=want)) for want in (0, 2, 10, 10)] == [0, 2, 3, 0]


class TestWhatIsDue:
    def test_a_delayed_job_waits_for_its_time(self, desk: Desk) -> None:
        delayed = desk.put(at=NOW + 5)

        assert ids(desk, now=NOW + 4.999) == []
        assert ids(desk, now=NOW + 5) == [delayed]

    def test_a_delayed_job_of_a_higher_priority_holds_nobody_up(self, desk: Desk) -> None:
        desk.put(at=NOW + 5, priority=100)
        due = desk.put(priority=-100)

        assert ids(desk) == [due]

    def test_only_the_types_wanted_are_claimed(self, desk: Desk) -> None:
        desk.put("caption")
        tag = desk.put("tag")

        assert ids(desk, "tag", "nsfw") == [tag]
        assert ids(desk, "nsfw") == []

    def test_a_paused_type_waits_until_it_is_resumed(self, desk: Desk) -> None:
        tag, caption = desk.put("tag"), desk.put("caption")
        desk.operations.controls.pause("tag", NOW)

        assert ids(desk, "tag", "caption") == [caption]
        assert desk.operations.controls.resume("tag") is True
        assert ids(desk, "tag", "caption") == [tag]

    def test_a_worker_in_full_swing_stops_at_a_pause(self, desk: Desk) -> None:
        desk.put()
        waiting = desk.put()
        claim = desk.one()
        desk.operations.controls.pause("tag", NOW)

        assert desk.settle_and_claim(done(claim, None), want=1).claims == []
        assert desk.status(waiting) is Status.PENDING


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

    def test_what_a_worker_cannot_run_holds_nobody_up(self, desk: Desk) -> None:
        desk.put(requires="gpu", priority=100)
        plain = desk.put()

        assert ids(desk, capabilities="cpu") == [plain]


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

    def test_a_claimed_job_is_given_to_nobody_else(self, desk: Desk) -> None:
        desk.put()
        desk.one()

        assert ids(desk, owner="w2", now=NOW + 10 * LOCK) == []


class TestExchange:
    def test_one_exchange_settles_and_claims(self, desk: Desk) -> None:
        first, second = desk.put(), desk.put()
        claim = desk.one()

        settle_and_claim = desk.settle_and_claim(done(claim, None), want=1)

        assert ([c.job_id for c in settle_and_claim.claims], settle_and_claim.lost) == ([second], [])
        assert desk.status(first) is Status.DONE

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
