"""`supervisor.testing`: what users' own tests rely on."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, Context, Fail, Queue, Retry, Snooze, task
from supervisor.domain.middleware import FailedJob
from supervisor.domain.settlement import RetryPolicy
from supervisor.engine import open_engine
from supervisor.testing import context, run_due
from supervisor.worker.handler import HandlerError


@pytest.fixture
def queue(tmp_path: Path) -> Any:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    yield queue
    queue.close()


def double(payload: Any, ctx: Context) -> Any:
    return payload * 2


def test_due_jobs_are_run_best_first_and_returned_as_they_ended(queue: Queue) -> None:
    low = queue.enqueue("double", 1, priority=-1)
    high = queue.enqueue("double", 2, priority=1)
    queue.enqueue("other", 3)
    jobs = run_due(queue, {"double": double})
    assert [(job.id, job.status, job.result, job.attempts) for job in jobs] == [
        (high, "done", 4, 1),
        (low, "done", 2, 1),
    ]
    assert queue.job(3).status == "pending"


async def later(payload: Any, ctx: Context) -> str:
    return "late"


@pytest.mark.parametrize(
    "handler", [double, "tests.unit.test_testing:double", later], ids=["function", "name", "async"]
)
def test_any_kind_of_handler_and_a_database_s_url_will_do(queue: Queue, handler: Any) -> None:
    queue.enqueue("sqrt", 9)
    assert [job.result for job in run_due(queue.url, {"sqrt": handler})] == ["late" if handler is later else 18]


def test_a_class_is_set_up_once_and_torn_down(queue: Queue) -> None:
    life: list[str] = []

    class Counter:
        def setup(self, ctx: Context) -> None:
            life.append(f"setup {ctx.job_id} {ctx.options['unit']}")

        def handle(self, payload: Any, ctx: Context) -> None:
            life.append(f"handle {ctx.job_id} {ctx.attempt}")

        def teardown(self, ctx: Context) -> None:
            life.append("teardown")

    queue.enqueue_many("count", [{}, {}])
    run_due(queue, {"count": Counter}, options={"unit": "pieces"})
    assert life == ["setup 0 pieces", "handle 1 1", "handle 2 1", "teardown"]


def test_a_failed_job_waits_for_its_next_attempt_and_now_brings_it(queue: Queue) -> None:
    def fail(payload: Any, ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    queue.enqueue("fail")
    policy = RetryPolicy(max_attempts=2, base=60.0, jitter=0.0)
    [first] = run_due(queue, {"fail": fail}, retry=policy)
    assert (first.status, first.last_error) == ("pending", "ValueError: attempt 1")
    assert run_due(queue, {"fail": fail}, retry=policy) == []
    [last] = run_due(queue, {"fail": fail}, retry=policy, now=time.time() + 61)
    assert (last.status, last.last_error) == ("failed", "ValueError: attempt 2")


@pytest.mark.parametrize("error", [ValueError("half a pair: \ud800"), Retry("next time", after=1e300)])
def test_whatever_an_exception_holds_its_job_is_settled(queue: Queue, error: Exception) -> None:
    def fail(payload: Any, ctx: Context) -> None:
        raise error

    queue.enqueue("fail")
    [job] = run_due(queue, {"fail": fail})
    assert (job.status, job.attempts) == ("pending", 1)
    assert job.last_error is not None
    assert job.last_error.isprintable()


def test_fail_and_retry_decide_as_in_a_worker(queue: Queue) -> None:
    def decide(payload: str, ctx: Context) -> None:
        if payload == "fail":
            raise Fail("never")
        raise Retry("later", after="1h")

    queue.enqueue_many("decide", ["fail", "retry"])
    failed, retried = run_due(queue, {"decide": decide})
    assert (failed.status, failed.last_error) == ("failed", "never")
    assert retried.status == "pending"
    assert retried.scheduled_at > time.time() + 3500


def test_a_delayed_job_runs_when_its_time_has_come(queue: Queue) -> None:
    queue.enqueue("double", 1, delay="10m")
    assert run_due(queue, {"double": double}) == []
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=11)
    assert [job.result for job in run_due(queue, {"double": double}, now=later)] == [2]
    with pytest.raises(ValueError, match="time zone"):
        run_due(queue, {"double": double}, now=datetime.datetime(2030, 1, 1))


def test_no_job_ends_before_it_has_started_whatever_the_clock_says(queue: Queue) -> None:
    def slow(payload: Any, ctx: Context) -> None:
        time.sleep(0.01)
        if payload:
            raise Fail("no")

    day = datetime.timedelta(days=1)
    for now in (None, time.time(), time.time() + 60, datetime.datetime.now(datetime.UTC) + day):
        queue.enqueue_many("slow", [0, 1])
        for job in run_due(queue, {"slow": slow}, now=now):
            assert job.started_at is not None
            assert job.completed_at is not None
            assert job.created_at <= job.started_at <= job.completed_at


def test_what_handlers_enqueue_runs_too_and_limit_ends_what_has_no_end(queue: Queue) -> None:
    def again(payload: int, ctx: Context) -> int:
        ctx.enqueue("again", payload + 1)
        return payload

    queue.enqueue("again", 0)
    jobs = run_due(queue, {"again": again}, limit=3)
    assert [job.result for job in jobs] == [0, 1, 2]
    assert queue.job(4).status == "pending"


def test_follow_ups_run_too(queue: Queue) -> None:
    @task(on_failed="tests.told", max_attempts=1)
    def breaks() -> None:
        raise ValueError("no")

    @task("tests.told")
    def told(job: int, status: str, error: str, **others: object) -> list[object]:
        return [job, status, error]

    breaks.options(queue=queue).enqueue()
    [_, follower] = run_due(queue, {"breaks": breaks, "tests.told": told})
    assert follower.result == [1, "failed", "ValueError: no"]


def test_jobs_that_require_more_than_there_is_are_left_alone(queue: Queue) -> None:
    queue.enqueue("double", 1, requires="gpu")
    assert run_due(queue, {"double": double}) == []
    assert len(run_due(queue, {"double": double}, capabilities=("cpu", "gpu"))) == 1


def test_ctrl_c_in_a_handler_comes_through_and_charges_nothing(queue: Queue) -> None:
    def interrupted(payload: Any, ctx: Context) -> None:
        raise KeyboardInterrupt

    job_id = queue.enqueue("interrupted")

    with pytest.raises(KeyboardInterrupt):
        run_due(queue, {"interrupted": interrupted})
    job = queue.job(job_id)
    assert (job.status, job.attempts) == ("pending", 0)


def test_a_handler_that_cannot_be_used_is_named(queue: Queue) -> None:
    with pytest.raises(HandlerError, match="no_such_module"):
        run_due(queue, {"x": "no_such_module:handle"})


def test_what_handlers_print_and_log_is_left_to_the_test(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    def talk(payload: Any, ctx: Context) -> None:
        sys.stdout.write("printed\n")
        ctx.log.info("tagging", path="cat.jpg")
        time.sleep(0.02)

    job_id = queue.enqueue("talk")
    [job] = run_due(queue, {"talk": talk})
    assert job.status == "done"
    said = capsys.readouterr()
    assert "printed\n" in said.out
    assert "tagging" in said.out + said.err
    with contextlib.closing(open_engine(queue.url).operations()) as operations:
        [run] = operations.jobs.runs(job_id)
    assert (run.outcome, run.cpu_time, run.peak_memory, run.log) == ("done", None, None, None)
    assert (run.duration or 0) >= 0.02


def test_a_handler_may_be_called_with_a_context_of_its_own() -> None:
    def handle(payload: Any, ctx: Context) -> str:
        ctx.progress(0.25, "a quarter")
        ctx.enqueue("next", {"of": ctx.job_id})
        ctx.extend("5m")
        return "cancelled" if ctx.cancelled else f"{ctx.type} {ctx.attempt} {ctx.options['k']}"

    ctx = context(job_id=7, type="tag", attempt=2, options={"k": 1})
    assert handle({}, ctx) == "tag 2 1"
    assert ctx.reported == 0.25
    assert [(job.type, job.payload) for job in ctx.children] == [("next", '{"of":7}')]
    assert handle({}, context(cancelled=True)) == "cancelled"


def test_a_handlers_own_middleware_is_called(queue: Queue) -> None:
    told = []

    class Telling:
        def on_failure(self, job: FailedJob, error: BaseException) -> None:
            told.append((job.attempt, job.final, repr(error)))

    class Handler:
        middleware = (Telling,)

        def handle(self, payload: object, ctx: Context) -> None:
            raise Fail("no")

    queue.enqueue("tag")
    run_due(queue, {"tag": Handler})
    assert told == [(1, True, "Fail('no')")]


def test_a_handler_enqueues_with_the_options_of_a_queue(queue: Queue) -> None:
    def parent(payload: Any, ctx: Context) -> None:
        ctx.enqueue("child", 1, priority=3, delay="1h", unique_key="k", meta={"tags": ["night"]})

    queue.enqueue("parent")
    run_due(queue, {"parent": parent})

    [child] = queue.jobs("child")
    assert (child.payload, child.priority, child.unique_key) == (1, 3, "k")
    assert child.meta == {"tags": ["night"]}


@pytest.mark.parametrize("delay", [1e12, 1e300, "40000d", -1, "soon", float("nan")])
def test_a_snooze_without_an_end_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"^.* is (not a duration|too long); "):
        Snooze(delay)
    assert Snooze("36500d").delay == 36500 * 86400


@pytest.mark.parametrize(
    ("progress", "sentence"),
    [
        ((0.5, object()), "the text of a progress must be a string, not <object"),
        ((0.5, 5), "the text of a progress must be a string, not 5"),
        ((0.5, None), "the text of a progress must be a string, not None"),
        ((None,), "progress must be a number from 0 to 1, not None"),
        (("half",), "progress must be a number from 0 to 1, not 'half'"),
        ((10**400,), "progress must be a number from 0 to 1, not 1000"),
        ((float("nan"),), "progress must be a number from 0 to 1, not nan"),
    ],
)
def test_a_progress_that_is_none_gets_one_sentence(progress: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        context().progress(*progress)


def test_queues_of_either_kind_are_taken_and_what_is_none_gets_one_sentence(queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("double", 2)
    assert [job.result for job in run_due(AsyncQueue.of(queue), {"double": double})] == [4]
    for wrong in (5, tmp_path, None, Queue):
        with pytest.raises(TypeError, match=r"^queue must be a Queue or an AsyncQueue, not "):
            run_due(wrong, {})  # type: ignore[arg-type]
        for kind in (Queue, AsyncQueue):
            with pytest.raises(TypeError, match=r"^a database's URL must be a string, not "):
                kind(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^AsyncQueue.of takes a Queue, not "):
            AsyncQueue.of(wrong)  # type: ignore[arg-type]
