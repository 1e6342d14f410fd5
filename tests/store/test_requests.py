"""Jobs that somebody waits for: one for each key, and no more than may wait, whoever asks at the same time."""

from __future__ import annotations

import contextlib
import threading

import pytest

from supervisor.domain.errors import QueueFull
from supervisor.domain.job import Delay, NewJob, Status
from supervisor.store.base import Engine
from tests.store.kit import T0, Desk

CLIENTS = 8


def request(key: str = "", limit: int | None = None, **fields: object) -> NewJob:
    once = f"run:{key}" if key else None
    job = NewJob("tag", "{}", scheduled_at=T0, max_waiting=limit, once=bool(key), unique_key=once)
    return job._replace(**fields)  # type: ignore[arg-type] - any field


class TestKeys:
    @pytest.mark.parametrize("end", [Status.DONE, Status.FAILED, Status.QUARANTINED])
    def test_an_unfinished_or_finished_job_is_found_by_its_key_and_type(self, desk: Desk, end: Status) -> None:
        first = desk.producer.put(request("k"))
        assert first[1]
        assert desk.producer.put_each([request("k"), request("k")]) == [(first[0], False)] * 2
        assert desk.producer.put(request("k", type="caption"))[1]
        desk.finish(first[0], end)

        assert desk.producer.put(request("k")) == (first[0], False)
        assert desk.producer.put_each([request("k"), request("other")])[0] == (first[0], False)

    def test_a_key_is_free_again_when_its_job_is_deleted(self, desk: Desk) -> None:
        first, _ = desk.producer.put(request("k"))
        desk.finish(first)
        desk.operations.actions.delete([first])

        assert desk.producer.put(request("k"))[1]

    def test_a_plain_unique_key_is_free_after_the_end_as_before(self, desk: Desk) -> None:
        first, _ = desk.producer.put(request(unique_key="run:k"))
        desk.finish(first)

        assert desk.producer.put(request(unique_key="run:k"))[1]

    def test_of_many_who_ask_at_once_one_makes_the_job(self, engine: Engine, desk: Desk) -> None:
        answers = at_once(engine, [request("k")] * CLIENTS)

        assert sorted(new for _, new in answers) == [False] * (CLIENTS - 1) + [True]
        assert len({job_id for job_id, _ in answers}) == 1


class TestRoom:
    def test_one_too_many_is_refused_and_nothing_is_written(self, desk: Desk) -> None:
        made = [desk.producer.put(request(limit=2)) for _ in range(2)]

        with pytest.raises(QueueFull):
            desk.producer.put(request(limit=2))

        assert [new for _, new in made] == [True, True]
        assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 2)]

    def test_of_several_in_one_transaction_those_that_find_room_are_inserted(self, desk: Desk) -> None:
        answers = desk.producer.put_each([request(limit=2) for _ in range(4)] + [request()])

        assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, True, True, False]
        assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 3)]

    def test_of_several_in_one_transaction_each_waits_for_those_of_its_priority_and_above(self, desk: Desk) -> None:
        priorities = (0, 5, 0, 5, 9, 5, 9)
        answers = desk.producer.put_each([request(limit=2, priority=priority) for priority in priorities])

        assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, True, False, False, True, False]

    def test_those_with_other_limits_take_room_too(self, desk: Desk) -> None:
        answers = desk.producer.put_each([request(limit=limit) for limit in (2, 3, 2, 3, 3)])

        assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, True, False, True]

    def test_a_job_that_runs_before_the_others_finds_room(self, desk: Desk) -> None:
        for requires in ("", "gpu"):
            for _ in range(3):
                desk.put(requires=requires)

        assert isinstance(put(desk, request(limit=3)), QueueFull)
        urgent = [put(desk, request(limit=3, priority=10)) for _ in range(4)]
        assert [isinstance(answer, QueueFull) for answer in urgent] == [False, False, False, True]
        assert not isinstance(put(desk, request(limit=3, priority=11)), QueueFull)

    def test_every_job_of_the_type_that_is_due_takes_room(self, desk: Desk) -> None:
        desk.put(priority=9)
        desk.put(requires="gpu")
        desk.put(priority=1, requires="a b")
        desk.operations.controls.pause("tag", T0)

        assert isinstance(put(desk, request(limit=3)), QueueFull)
        assert not isinstance(put(desk, request(limit=4)), QueueFull)

    def test_running_delayed_finished_and_other_jobs_take_none(self, desk: Desk) -> None:
        desk.put()
        desk.one()
        desk.producer.put(NewJob("tag", "{}", scheduled_at=Delay(3600.0), priority=5))
        desk.put("caption")

        assert not isinstance(put(desk, request(limit=1)), QueueFull)

    def test_a_job_that_is_found_by_its_key_needs_no_room(self, desk: Desk) -> None:
        first, _ = desk.producer.put(request("k", limit=1))
        kept, _ = desk.producer.put(request(unique_key="u"))

        assert desk.producer.put(request("k", limit=1)) == (first, False)
        assert desk.producer.put(request(limit=1, unique_key="u")) == (kept, False)

    def test_no_more_find_room_than_there_is_however_many_ask_at_once(self, engine: Engine, desk: Desk) -> None:
        refused = 0
        for _ in range(4):
            refused += CLIENTS - len(at_once(engine, [request(limit=10)] * CLIENTS))

        assert refused == 4 * CLIENTS - 10
        assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 10)]


def put(desk: Desk, job: NewJob) -> object:
    [answer] = desk.producer.put_each([job])
    return answer


def at_once(engine: Engine, jobs: list[NewJob]) -> list[tuple[int, bool]]:
    """Put each on a connection of its own, all at the same time. Returns the answers of those that found room."""
    answers: list[tuple[int, bool]] = []
    start = threading.Barrier(len(jobs))

    def ask(job: NewJob) -> None:
        with contextlib.closing(engine.producer(create=False)) as producer:
            producer.events([0])  # it is connected
            start.wait(20)
            with contextlib.suppress(QueueFull):
                answers.append(producer.put(job))

    threads = [threading.Thread(target=ask, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers
