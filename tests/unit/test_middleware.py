"""What middleware sees and may change, and that its errors harm no job."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import Fail, Queue, Retry
from supervisor.domain import middleware
from supervisor.domain.job import Claim, Status
from supervisor.domain.middleware import EnqueuedJob, FailedJob, MiddlewareError, WorkerInfo
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import RetryPolicy, Settlement
from supervisor.worker.context import BatchContext, Board, Context, JobInterrupted
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler
from supervisor.worker.middleware import WorkerMiddleware
from supervisor.worker.runners.batch import BatchExecutor


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    @property
    def hooks(self) -> list[str]:
        return [fields["hook"] for event, fields in self.lines if event == "middleware_failed"]


@pytest.fixture
def log() -> Iterator[Log]:
    yield Log()
    middleware.set_for_process(middleware.NO_HOOKS)


def executor(log: Log, handle: Any, *targets: object, batches: bool = False) -> Executor:
    loaded = middleware.load(targets)
    worker = WorkerMiddleware(loaded, WorkerInfo("pool", "pool-1", log))
    worker.set_up()
    target = type("Batch", (), {"handle_batch": staticmethod(handle)}) if batches else handle
    return Executor(
        Handler(target, "handle"),
        Board(),
        JobPolicy(RetryPolicy(max_attempts=2, jitter=0)),
        options={},
        middleware=worker,
    )


def claim(attempt: int = 1, job: int = 7) -> Claim:
    return Claim(job, 1, "tag", '{"n": 1}', attempt, None, 0)


def run(log: Log, handle: Any, *targets: object, attempt: int = 1) -> Settlement:
    return executor(log, handle, *targets).run(claim(attempt))


class Around:
    def __init__(self, around: Callable[[Callable[[], Any], Context], Any]) -> None:
        self.around_run = around


class Failures:
    def __init__(self) -> None:
        self.told: list[tuple[FailedJob, BaseException]] = []

    def on_failure(self, job: FailedJob, error: BaseException) -> None:
        self.told.append((job, error))


def one(payload: Any, ctx: Context) -> int:
    return 1


def refuse(payload: Any, ctx: Context) -> None:
    raise ValueError("no")


# around_run


def test_the_first_middleware_is_the_outermost(log: Log) -> None:
    seen: list[str] = []

    def around(name: str) -> Around:
        def hook(call: Callable[[], Any], ctx: Context) -> Any:
            seen.append(f"{name} before {ctx.job_id}")
            value = call()
            seen.append(f"{name} after {value}")
            return value

        return Around(hook)

    settlement = run(log, one, around("outer"), around("inner"))

    assert (settlement.status, settlement.result) == (Status.DONE, "1")
    assert seen == ["outer before 7", "inner before 7", "inner after 1", "outer after 1"]


def test_an_async_handler_has_ended_when_call_returns(log: Log) -> None:
    seen: list[Any] = []

    async def handle(payload: Any, ctx: Context) -> int:
        await asyncio.sleep(0)
        seen.append("handler")
        return 2

    def hook(call: Callable[[], Any], ctx: Context) -> Any:
        seen.append(call())
        return seen[-1]

    ran = executor(log, handle, Around(hook))
    assert ran.run(claim()).result == "2"
    assert seen == ["handler", 2]
    ran.handler.teardown(ran.context())


def test_a_batch_is_one_run_with_a_context_for_each_job(log: Log) -> None:
    seen: list[list[int]] = []

    def hook(call: Callable[[], Any], ctx: Context) -> Any:
        assert isinstance(ctx, BatchContext)
        seen.append([job.job_id for job in ctx.jobs])
        return call()

    ran = executor(log, lambda payloads, ctx: [1] * len(payloads), Around(hook), batches=True)
    settlements = BatchExecutor(ran).run([claim(job=1), claim(job=2)])

    assert [settlement.result for settlement in settlements] == ["1", "1"]
    assert seen == [[1, 2]]


def broken_before(call: Callable[[], Any], ctx: Context) -> Any:
    raise KeyError("mine")


def broken_after(call: Callable[[], Any], ctx: Context) -> Any:
    call()
    raise KeyError("mine")


def ends_the_process(call: Callable[[], Any], ctx: Context) -> Any:
    call()
    raise SystemExit(3)


def forgets_the_result(call: Callable[[], Any], ctx: Context) -> Any:
    call()


def never_calls(call: Callable[[], Any], ctx: Context) -> Any:
    return "mine"


def calls_twice(call: Callable[[], Any], ctx: Context) -> Any:
    call()
    return call()


def swallows(call: Callable[[], Any], ctx: Context) -> Any:
    try:
        return call()
    except BaseException:
        return "mine"


EVERY = [broken_before, broken_after, ends_the_process, forgets_the_result, never_calls, calls_twice, swallows]
FAILING = [broken_before, broken_after, ends_the_process, never_calls]


@pytest.mark.parametrize("hook", EVERY)
def test_the_outcome_is_the_handlers_whatever_a_middleware_does(log: Log, hook: Any) -> None:
    runs: list[int] = []

    def handle(payload: Any, ctx: Context) -> int:
        runs.append(ctx.job_id)
        return 1

    settlement = run(log, handle, Around(hook))

    assert (settlement.status, settlement.result, runs) == (Status.DONE, "1", [7])
    assert log.hooks == (["around_run"] if hook in FAILING else [])


@pytest.mark.parametrize("hook", EVERY)
def test_so_it_is_with_an_error(log: Log, hook: Any) -> None:
    settlement = run(log, refuse, Around(hook))

    assert settlement.failure is not None
    assert (settlement.failure.kind, settlement.failure.message) == ("exception", "ValueError: no")


def test_the_stack_that_is_kept_begins_with_the_handler(log: Log) -> None:
    settlement = run(log, refuse, Around(lambda call, ctx: call()), Around(lambda call, ctx: call()))

    assert settlement.failure is not None
    assert settlement.failure.traceback is not None
    first, *_ = settlement.failure.traceback.splitlines()[1:]
    assert "in refuse" in first
    assert "worker/middleware.py" not in settlement.failure.traceback


def test_a_middleware_may_decide_by_retry_and_fail(log: Log) -> None:
    def not_now(call: Callable[[], Any], ctx: Context) -> Any:
        raise Retry("too many", after=7.0)

    def translated(call: Callable[[], Any], ctx: Context) -> Any:
        try:
            return call()
        except ValueError as error:
            raise Fail("never") from error

    later, never = run(log, one, Around(not_now)), run(log, refuse, Around(translated))

    assert (later.status, later.delay) == (Status.PENDING, 7.0)
    assert never.status is Status.FAILED
    assert log.lines == []


def test_an_interruption_passes_through_every_middleware(log: Log) -> None:
    def interrupted(payload: Any, ctx: Context) -> None:
        raise JobInterrupted

    for handle, hook in ((interrupted, swallows), (one, lambda call, ctx: interrupted(None, ctx))):
        assert run(log, handle, Around(hook)).status is Status.CANCELLED


def test_a_broken_middleware_is_logged_once_a_minute_and_not_for_each_job(log: Log) -> None:
    ran = executor(log, one, Around(broken_before))
    for _ in range(100):
        assert ran.run(claim()).status is Status.DONE
    assert log.hooks == ["around_run"]


# on_failure


def test_a_failed_attempt_is_told_with_whether_it_was_the_last(log: Log) -> None:
    failures = Failures()

    run(log, refuse, failures)
    run(log, refuse, failures, attempt=2)

    (first, error), (last, _) = failures.told
    assert (first.id, first.type, first.attempt, first.pool, first.final) == (7, "tag", 1, "pool", False)
    assert (last.attempt, last.final, last.kind, last.message) == (2, True, "exception", "ValueError: no")
    assert isinstance(error, ValueError)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code.co_name == "refuse", "the handler's own stack"


def test_neither_a_success_nor_a_cancelled_run_is_a_failure(log: Log) -> None:
    def cancelled(payload: Any, ctx: Context) -> None:
        raise JobInterrupted

    failures = Failures()
    run(log, one, failures)
    run(log, cancelled, failures)

    assert failures.told == []


def test_of_a_batch_each_job_that_failed_is_told_and_a_suspected_one_is_not(log: Log) -> None:
    failures = Failures()
    mixed = executor(log, lambda payloads, ctx: [1, Fail("x")], failures, batches=True)
    BatchExecutor(mixed).run([claim(job=1), claim(job=2)])

    assert [job.id for job, _ in failures.told] == [2]

    def torn(payloads: Any, ctx: Context) -> Any:
        raise ValueError("one of them")

    unclear = executor(log, torn, failures, batches=True)
    unclear.log = type("Quiet", (), {"warning": lambda *a, **k: None})()
    BatchExecutor(unclear).run([claim(job=1), claim(job=2)])
    assert len(failures.told) == 1


def test_an_error_in_on_failure_leaves_the_outcome_alone(log: Log) -> None:
    class Broken:
        def on_failure(self, job: FailedJob, error: BaseException) -> None:
            raise KeyError("mine")

    settlement = run(log, refuse, Broken())
    assert (settlement.status, log.hooks) == (Status.PENDING, ["on_failure"])


def test_errors_in_setup_and_teardown_are_only_logged(log: Log) -> None:
    class Broken:
        def setup(self, worker: WorkerInfo) -> None:
            raise KeyError("mine")

        teardown = setup

    worker = WorkerMiddleware(middleware.load([Broken]), WorkerInfo("pool", "pool-1", log))
    worker.set_up()
    worker.tear_down()
    assert log.hooks == ["setup", "teardown"]


# on_enqueue


class Tracing:
    def on_enqueue(self, job: EnqueuedJob) -> None:
        job.meta["trace"] = f"{job.type} {json.dumps(job.payload)}"


class Broken:
    def on_enqueue(self, job: EnqueuedJob) -> None:
        job.meta["lost"] = 1
        raise KeyError("mine")


class Huge:
    def on_enqueue(self, job: EnqueuedJob) -> None:
        job.meta["x"] = "x" * 20_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def test_a_queue_lets_its_middleware_add_to_meta(url: str) -> None:
    with Queue(url, middleware=[Tracing]) as queue:
        job = queue.enqueue("tag", {"n": 1}, meta={"mine": 2})
        assert queue.job(job).meta == {"mine": 2, "trace": 'tag {"n": 1}'}


def test_each_of_many_jobs_has_its_own_meta(url: str) -> None:
    with Queue(url, middleware=[Tracing()]) as queue:
        jobs = [queue.job(job) for job in queue.enqueue_many("tag", [{"n": 1}, "text", 3, None, [1]])]
    assert [job.payload for job in jobs] == [{"n": 1}, "text", 3, {}, [1]]
    assert [job.meta["trace"] for job in jobs] == [
        'tag {"n": 1}', 'tag "text"', "tag 3", "tag {}", "tag [1]",
    ]  # fmt: skip


@pytest.mark.parametrize("broken", [Broken, Huge])
def test_a_middleware_that_fails_leaves_the_job_as_it_was(
    url: str, broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Queue(url, middleware=[broken, Tracing]) as queue, caplog.at_level(logging.ERROR):
        job = queue.job(queue.enqueue("tag", 1, meta={"mine": 2}))
    assert job.meta == {"mine": 2, "trace": "tag 1"}
    assert f"{broken.__name__}.on_enqueue failed" in caplog.text


def test_what_a_handler_enqueues_passes_through_the_pools_middleware(log: Log, url: str) -> None:
    with Queue(url) as queue:
        ids: list[int] = []

        def handle(payload: Any, ctx: Context) -> None:
            ctx.enqueue("child", 5)
            ids.append(queue.enqueue("other", 6))

        settlement = run(log, handle, Tracing())

        assert [json.loads(child.extra["meta"]) for child in settlement.children] == [{"trace": "child 5"}]
        assert queue.job(ids[0]).meta == {"trace": "other 6"}


# Names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere", "write module:attribute"),
        ("no_such_module:Thing", "no_such_module:Thing: importing it failed: ModuleNotFoundError"),
        ("json:nothing", "json:nothing: importing it failed: AttributeError"),
        ("json:JSONDecodeError", "json:JSONDecodeError: making an instance failed: TypeError"),
        ("json:dumps", "it has none of the methods on_enqueue, setup, around_run"),
    ],
)
def test_what_is_no_middleware_is_refused_with_one_sentence(name: str, problem: str) -> None:
    with pytest.raises(MiddlewareError) as caught:
        middleware.load([name])
    assert problem in str(caught.value)
