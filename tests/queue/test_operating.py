"""What programs do with jobs besides enqueueing them one by one."""

from __future__ import annotations

import asyncio
import datetime
import multiprocessing
import sqlite3
import time
from typing import Any

import pytest

from supervisor import AsyncQueue, Conflict, DuplicateJob, Enqueue, InvalidJob, JobNotFound, Queue, QueueError, Status
from tests.queue.conftest import end, run


class TestPut:
    def test_a_new_job_and_a_duplicate_are_told_apart(self, queue: Queue, other: sqlite3.Connection) -> None:
        first, new = queue.put("tag", {"n": 1}, unique_key="k", priority=3)
        assert new
        assert queue.put("tag", {"n": 2}, unique_key="k") == (first, False)
        assert queue.put("mail", unique_key="k")[1]
        assert queue.put("tag") != queue.put("tag")
        assert (queue.job(first).payload, queue.job(first).priority) == ({"n": 1}, 3)
        end(other, first)
        assert queue.put("tag", unique_key="k")[1]

    def test_it_is_part_of_the_callers_transaction(self, queue: Queue, other: sqlite3.Connection) -> None:
        other.execute("BEGIN")
        job_id, new = queue.put("tag", unique_key="k", connection=other)
        assert new
        assert queue.put("tag", unique_key="k", connection=other) == (job_id, False)
        other.execute("ROLLBACK")
        assert queue.count() == 0
        assert queue.put("tag", unique_key="k", connection=other)[1]

    def test_of_two_programs_exactly_one_is_told_that_its_job_is_new(self, queue: Queue) -> None:
        keys = [f"k{number}" for number in range(200)]
        context = multiprocessing.get_context("fork")
        answers: Any = context.SimpleQueue()
        start = context.Barrier(3)
        programs = [context.Process(target=_put_all, args=(queue, keys, start, answers)) for _ in range(3)]
        for program in programs:
            program.start()
        found = [answers.get() for _ in programs]
        for program in programs:
            program.join(30)
        for answer in zip(*found, strict=True):
            assert len({job_id for job_id, _ in answer}) == 1
            assert sorted(new for _, new in answer) == [False, False, True]
        assert queue.count() == 200

    def test_what_a_duplicate_does_is_the_callers_choice(self, queue: Queue, other: sqlite3.Connection) -> None:
        first = queue.enqueue("tag", {"n": 1}, unique_key="k")
        assert queue.put("tag", {"n": 2}, unique_key="k", on_duplicate="replace") == (first, False)
        assert queue.job(first).payload == {"n": 2}
        other.execute("BEGIN")
        queue.put("tag", {"n": 3}, unique_key="k", on_duplicate="replace", connection=other)
        other.execute("ROLLBACK")
        assert queue.job(first).payload == {"n": 2}
        with pytest.raises(DuplicateJob, match=f"job {first}"):
            queue.enqueue("tag", unique_key="k", on_duplicate="error")
        with pytest.raises(DuplicateJob):
            queue.enqueue_many("tag", [{}, Enqueue({}, unique_key="k", on_duplicate="error")])
        assert queue.count() == 1
        end(other, first)
        assert queue.put("tag", unique_key="k", unique_for=60)[1]

    def test_an_asynchronous_program_is_told_the_same(self, queue: Queue) -> None:
        async def enqueue() -> None:
            later = AsyncQueue.of(queue)
            first, new = await later.put("tag", {"n": 1}, unique_key="k", unique="pending")
            one, error, two = await asyncio.gather(
                later.enqueue("tag"),
                later.enqueue("tag", unique_key="k", on_duplicate="error"),
                later.enqueue("tag", {"n": 2}, unique_key="k", unique="pending", on_duplicate="replace"),
                return_exceptions=True,
            )
            assert new
            assert one != first
            assert isinstance(error, DuplicateJob)
            assert two == error.job_id == first
            assert (await later.job(first)).payload == {"n": 2}

        asyncio.run(enqueue())

    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("unique", {"unique": "pending"}),
            ("unique_for", {"unique_for": "1h"}),
            ("on_duplicate", {"on_duplicate": "error"}),
            ("unique", {"unique_key": "k", "unique": "running"}),
            ("unique_for", {"unique_key": "k", "unique_for": -1}),
            ("unique_for", {"unique_key": "k", "unique": "pending", "unique_for": "1h"}),
            ("on_duplicate", {"unique_key": "k", "on_duplicate": "skip"}),
        ],
    )
    def test_what_a_key_cannot_mean_is_refused(self, queue: Queue, field: str, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidJob) as raised:
            queue.enqueue("tag", **options)
        assert raised.value.field == field
        assert queue.count() == 0

    def test_an_invalid_one_writes_nothing(self, queue: Queue) -> None:
        with pytest.raises(InvalidJob, match="priority"):
            queue.put("tag", priority=101)
        assert queue.count() == 0


def _put_all(queue: Queue, keys: list[str], start: Any, answers: Any) -> None:
    start.wait(30)
    answers.put([queue.put("tag", unique_key=key) for key in keys])


class TestWhy:
    def test_a_program_learns_why_its_job_does_not_run(self, queue: Queue, other: sqlite3.Connection) -> None:
        job_id = queue.enqueue("tag", delay="1h")
        late, nobody = queue.why(job_id)
        assert (late.code, late.until) == ("not_due", queue.job(job_id).scheduled_at)
        assert str(nobody) == "no supervisor is running; `supervisor run` starts one"
        assert asyncio.run(AsyncQueue.of(queue).why(job_id))[1] == nobody
        other.execute("UPDATE jobs SET status = 'held', hold = 'due'")
        assert queue.why(job_id)[0].code == "not_due"
        end(other, job_id)
        assert [reason.code for reason in queue.why(job_id)] == ["done"]
        with pytest.raises(JobNotFound):
            queue.why(4711)


class TestEnqueueMany:
    def test_each_may_have_options_of_its_own(self, queue: Queue) -> None:
        before = time.time()
        ids = queue.enqueue_many(
            "tag",
            [{"n": 1}, Enqueue({"n": 2}, priority=5, unique_key="k", delay="10s"), Enqueue(type="mail"), [4]],
            priority=1,
            at=before + 1000,
            meta={"tags": ["night"]},
        )
        jobs = [queue.job(job_id) for job_id in ids]
        assert [(job.type, job.payload, job.priority, job.unique_key) for job in jobs] == [
            ("tag", {"n": 1}, 1, None),
            ("tag", {"n": 2}, 5, "k"),
            ("mail", {}, 1, None),
            ("tag", [4], 1, None),
        ]
        assert jobs[0].scheduled_at == jobs[2].scheduled_at == before + 1000
        assert before + 10 <= jobs[1].scheduled_at < before + 500
        assert {str(job.meta) for job in jobs} == {"{'tags': ['night']}"}

    @pytest.mark.parametrize("place", [0, 1, 999, 1000, 2499])
    def test_order_and_payloads_stay_wherever_the_first_with_options_is(self, queue: Queue, place: int) -> None:
        payloads: list[object] = [{"n": number, "text": "ä\n"} if number % 7 else number for number in range(2500)]
        given = [Enqueue(value, priority=9) if number == place else value for number, value in enumerate(payloads)]

        ids = queue.enqueue_many("tag", iter(given))

        assert [queue.job(job_id).payload for job_id in ids] == payloads
        assert [job.id for job in queue.jobs() if job.priority == 9] == [ids[place]][: int(place >= 2400)]

    def test_a_duplicate_key_is_the_same_job(self, queue: Queue) -> None:
        one, two, three = queue.enqueue_many("tag", [Enqueue({}, unique_key="k"), {}, Enqueue({}, unique_key="k")])
        assert one == three != two

    @pytest.mark.parametrize("bad", [Enqueue({}, priority=101), Enqueue({}, type="no type"), Enqueue({1, 2}), {1, 2}])
    def test_nothing_is_written_if_one_of_them_is_invalid(self, queue: Queue, bad: object) -> None:
        with pytest.raises(InvalidJob):
            queue.enqueue_many("tag", [{}, Enqueue({}, priority=1), bad])
        assert queue.count() == 0

    def test_none_is_no_transaction(self, queue: Queue) -> None:
        assert queue.enqueue_many("tag", []) == []


class TestLooking:
    @pytest.fixture
    def ids(self, queue: Queue, other: sqlite3.Connection) -> list[int]:
        ids = queue.enqueue_many("tag", [{"n": number} for number in range(5)])
        ids += queue.enqueue_many("mail", [Enqueue({}, unique_key="k"), Enqueue({}, meta={"tags": ["night"]})])
        end(other, ids[0])
        end(other, ids[1], "failed")
        run(other, ids[2])
        return ids

    def test_jobs_are_selected_by_every_condition(self, queue: Queue, ids: list[int]) -> None:
        def found(*args: Any, **conditions: Any) -> list[int]:
            chosen = queue.jobs(*args, **conditions)
            assert queue.count(*args, **conditions) == len(chosen)
            return [ids.index(job.id) for job in chosen]

        completed = queue.job(ids[1]).completed_at
        assert completed is not None
        at = datetime.datetime.fromtimestamp(completed, datetime.UTC)
        later = at + datetime.timedelta(hours=1)
        assert found() == [6, 5, 4, 3, 2, 1, 0]
        assert found("mail") == [6, 5]
        assert found(["mail", "tag"], "pending") == [6, 5, 4, 3]
        assert found(status=[Status.DONE, "failed"]) == [1, 0]
        assert found(unique_key="k") == [5]
        assert found(ids=[ids[3], ids[0], 99, ids[3]]) == [3, 0]
        assert found(ids=[]) == []
        assert found(ids=ids, status="running") == [2]
        assert found(tags=["night"]) == [6]
        assert found(error="NO") == [1]
        assert found(text='"n":3') == [3]
        assert found(finished_after=at - datetime.timedelta(hours=1), finished_before=later) == [1, 0]
        assert found(finished_after=later) == []

    def test_pages_follow_each_other(self, queue: Queue, ids: list[int]) -> None:
        seen, before = [], None
        while True:
            page = queue.jobs(limit=3, before=before)
            assert len(page) <= 3
            seen += [job.id for job in page]
            before = page.next
            if before is None:
                break
        assert seen == ids[::-1]

    def test_values_are_whole_however_long(self, queue: Queue) -> None:
        payload = {"text": "x" * 100_000}
        queue.enqueue("tag", payload)
        assert queue.jobs()[0].payload == payload

    def test_a_count_stops_where_it_is_told(self, queue: Queue, ids: list[int]) -> None:
        assert (queue.count(), queue.count(most=2)) == (7, 2)

    @pytest.mark.parametrize(
        ("conditions", "field"),
        [
            ({"status": "finished"}, "status"),
            ({"finished_after": datetime.datetime(2027, 1, 1)}, "finished_after"),
            ({"limit": 0}, "limit"),
            ({"limit": 10_001}, "limit"),
        ],
    )
    def test_a_wrong_condition_is_named(self, queue: Queue, conditions: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidJob, match=field) as refused:
            queue.jobs(**conditions)
        assert refused.value.field == field

    def test_progress_is_what_the_handler_last_reported(self, queue: Queue, other: sqlite3.Connection) -> None:
        job_id = queue.enqueue("tag")
        assert queue.progress(job_id) == (None, None)
        run(other, job_id)
        other.execute("UPDATE jobs SET progress = 0.25, progress_text = 'page 1 of 4' WHERE id = ?", (job_id,))
        fraction, text = queue.progress(job_id)
        assert (fraction, text) == (0.25, "page 1 of 4")
        with pytest.raises(JobNotFound):
            queue.progress(99)


class TestChanging:
    def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked(
        self, queue: Queue, other: sqlite3.Connection
    ) -> None:
        waiting, running, done = queue.enqueue_many("tag", [1, 2, 3])
        run(other, running)
        end(other, done)
        assert queue.cancel(waiting) is Status.CANCELLED
        assert queue.cancel(running) is Status.RUNNING
        assert queue.job(running).cancel_requested_at is not None
        with pytest.raises(Conflict, match="is done"):
            queue.cancel(done)
        with pytest.raises(JobNotFound):
            queue.cancel(99)

    def test_a_failed_job_is_retried(self, queue: Queue, other: sqlite3.Connection) -> None:
        job_id = queue.enqueue("tag", unique_key="k")
        with pytest.raises(Conflict, match="is pending"):
            queue.retry(job_id)
        end(other, job_id, "failed")
        queue.retry(job_id)
        assert (queue.job(job_id).status, queue.job(job_id).attempts) == (Status.PENDING, 0)
        end(other, job_id, "failed")
        twin = queue.enqueue("tag", unique_key="k")
        with pytest.raises(Conflict, match=f"unfinished job {twin} has the unique key") as refused:
            queue.retry(job_id)
        assert refused.value.duplicate_of == twin
        with pytest.raises(JobNotFound):
            queue.retry(99)

    def test_a_finished_job_is_deleted(self, queue: Queue, other: sqlite3.Connection) -> None:
        job_id = queue.enqueue("tag")
        with pytest.raises(Conflict, match="cancel it first"):
            queue.delete(job_id)
        end(other, job_id)
        queue.delete(job_id)
        for call in (queue.job, queue.delete):
            with pytest.raises(JobNotFound):
                call(job_id)

    def test_a_type_is_paused_and_resumed(self, queue: Queue, other: sqlite3.Connection) -> None:
        queue.enqueue("tag")
        paused = "SELECT name FROM job_controls WHERE kind = 'paused'"
        assert queue.pause("tag")
        assert not queue.pause("tag")
        assert other.execute(paused).fetchall() == [("tag",)]
        assert queue.resume("tag")
        assert not queue.resume("tag")
        assert other.execute(paused).fetchall() == []

    def test_a_type_that_nobody_knows_is_not_paused_unless_that_is_meant(self, queue: Queue) -> None:
        queue.enqueue("greet")
        with pytest.raises(QueueError, match="did you mean greet"):
            queue.pause("gret")
        with pytest.raises(InvalidJob):
            queue.pause("no type", force=True)
        assert queue.pause("gret", force=True)


def test_a_long_list_holds_up_no_look_at_a_job(queue: Queue) -> None:
    job_id = queue.enqueue("tag")
    connections = queue._connections
    queue.jobs()
    assert connections.lister.producer is not connections.reader.producer
    with connections.lister.guard:
        assert queue.job(job_id).id == job_id
