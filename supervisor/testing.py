"""For the tests of programs with handlers: run due jobs in this process, or call a handler directly.

    from supervisor import Queue
    from supervisor.testing import context, run_due

    def test_a_picture_is_tagged(tmp_path):
        queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
        queue.enqueue("tag", {"path": "cat.jpg"})
        [job] = run_due(queue, {"tag": Tagger})
        assert job.status == "done"
        assert job.result == {"tags": ["cat"]}

    def test_a_missing_picture_fails_for_good():
        with pytest.raises(Fail):
            Tagger().handle({"path": "gone.jpg"}, context())

Jobs are claimed, run and settled by the code that workers use, on the real table: retries, unique keys,
priorities, capabilities and paused types behave as in production. What needs a separate process does not
work here: there is no time limit and no memory limit, and a crash ends the test.
"""

from __future__ import annotations

import datetime
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from supervisor import tasks
from supervisor.client import Queue
from supervisor.config.pools import policy_of
from supervisor.domain import middleware
from supervisor.domain.job import Claim, Job
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import FollowUps, RetryPolicy, Settlement, released
from supervisor.engine import open_engine
from supervisor.store.base import Claims, Gates, JobSelector
from supervisor.telemetry import events
from supervisor.worker.context import Board, Context
from supervisor.worker.executor import Executor
from supervisor.worker.handler import Handler
from supervisor.worker.loader import TaskHandler, load
from supervisor.worker.middleware import WorkerMiddleware

if TYPE_CHECKING:
    from supervisor.client.asynchronous import AsyncQueue

__all__ = ["context", "run_due"]

HandlerLike = str | type | Callable[..., Any]

_LOCK_TIME = 3600.0  # seconds; a debugger may stop a handler for a long time
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def run_due(
    queue: Queue | AsyncQueue | str,
    handlers: Mapping[str, HandlerLike] | None = None,
    *,
    now: float | datetime.datetime | None = None,
    limit: int | None = None,
    retry: RetryPolicy | None = None,
    capabilities: tuple[str, ...] = (),
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[Job]:
    """Run the due jobs until there are none, in order of priority, and return them as they are afterwards.

    `queue` is a Queue, an AsyncQueue or a database's URL. `handlers` gives each type a task, a function, a class or
    "module:attribute"; other types are ignored. Without it, the tasks of all modules imported so far are run.
    `now` (Unix seconds or an aware datetime) decides what is due: `now=time.time() + 60` also runs jobs with a shorter
    delay. Jobs that handlers enqueue are run too if they are due; `limit` is the maximum number of runs, for handlers
    that enqueue themselves forever.

    A handler's exception is recorded in its job, as in a worker: check `status` and `last_error`. `retry` is
    the pool's policy; the options of a task's decorator override it. Tasks that are enqueued go into the same
    database. Raises HandlerError for a handler that cannot be used, KeyboardInterrupt at once.
    """
    if "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None:
        raise RuntimeError(
            "run_due cannot run on an event loop; call it in a thread: await asyncio.to_thread(run_due, …)"
        )
    at = time.time if now is None else partial(_seconds, now)
    queue = Queue(queue) if isinstance(queue, str) else tasks.synchronous(queue)
    engine = open_engine(queue.url)
    engine.database.migrate()
    handlers = tasks.registered if handlers is None else handlers
    retry = retry or RetryPolicy()
    declared = {type_: each.declared for type_, each in handlers.items() if isinstance(each, tasks.Task)}
    own = {type_: policy_of(options, retry) for type_, options in declared.items()}
    follow = {type_: FollowUps.of(options) for type_, options in declared.items()}
    policy, board = JobPolicy(retry, retry_by_type=own, follow_ups=follow), Board(engine.database.epoch(), engine.about)
    executors: dict[str, Executor] = {}
    for type_, target in handlers.items():
        handler = _handler(type_, target)
        executors[type_] = _Executor(
            handler, board, policy, capabilities=capabilities, options=options, middleware=_own_middleware(handler)
        )
    with closing(engine.claims()) as claims, tasks.using(queue), ExitStack() as teardowns:
        for executor in executors.values():
            executor.handler.setup(executor.context())
            teardowns.callback(executor.handler.teardown, executor.context())
        operations = teardowns.enter_context(closing(engine.operations()))
        wanted = JobSelector(tuple(handlers), " ".join(capabilities))
        ids = _run_all(claims, operations.gates, executors, wanted, at, limit)
    return [queue.job(job_id) for job_id in ids]


def context(
    *,
    job_id: int = 1,
    type: str = "test",
    attempt: int = 1,
    capabilities: tuple[str, ...] = (),
    options: Mapping[str, Any] = _NO_OPTIONS,
    device: str | None = None,
    cancelled: bool = False,
) -> Context:
    """What a handler receives besides its payload, to call it directly.

    Afterwards `reported` is the last progress and `children` the jobs that it has enqueued; these are
    validated but not stored. `cancelled` is the value of `ctx.cancelled`.
    """
    claim = Claim(job_id, 1, type, "{}", attempt, None, 0)
    board = _Cancelled() if cancelled else Board()
    return Context(board, claim=claim, capabilities=capabilities, options=options, device=device)


class _Cancelled(Board):
    def cancelled(self, job: int, token: int) -> bool:
        return True


class _Executor(Executor):
    """Ctrl-C in a test run is no outcome of the job."""

    def failed(self, claim: Claim, error: BaseException, started_at: float) -> Settlement:
        if isinstance(error, KeyboardInterrupt):
            raise error
        return super().failed(claim, error, started_at)


def _own_middleware(handler: Handler) -> WorkerMiddleware | None:
    """That of the handler itself; a pool, which may have more, there is none here."""
    info = middleware.WorkerInfo("testing", "testing", events())
    return WorkerMiddleware(middleware.load(handler.middleware), info) if handler.middleware else None


def _handler(type_: str, target: HandlerLike) -> Handler:
    if isinstance(target, str):
        return load(target)
    name = f"the handler of {type_}"
    return TaskHandler(name, {type_: target}) if isinstance(target, tasks.Task) else Handler(target, name)


def _run_all(
    claims: Claims,
    gates: Gates,
    executors: Mapping[str, Executor],
    wanted: JobSelector,
    at: Callable[[], float],
    limit: int | None,
) -> list[int]:
    """The ids of the jobs that were run, each once, in the order of their first run."""
    owner = f"testing-{uuid.uuid4()}"
    ids: dict[int, None] = {}
    runs = 0
    while limit is None or runs < limit:
        found = claims.settle_and_claim(owner, [], wanted, 1, _LOCK_TIME, at()).claims
        if not found and gates.admit_due(at()) + gates.cancel_expired(at()):  # no maintainer does it
            found = claims.settle_and_claim(owner, [], wanted, 1, _LOCK_TIME, at()).claims
        if not found:
            break
        claim = found[0]
        try:
            settlement = executors[claim.type].run(claim)
        except KeyboardInterrupt:
            claims.settle_and_claim(owner, [released(claim)], wanted, 0, _LOCK_TIME, at())
            raise
        if at is not time.time and settlement.started_at is not None:
            settlement = settlement._replace(started_at=at())  # by the same clock as its end
        claims.settle_and_claim(owner, [settlement], wanted, 0, _LOCK_TIME, at())
        ids[claim.job_id] = None
        runs += 1
    return list(ids)


def _seconds(now: float | datetime.datetime) -> float:
    if not isinstance(now, datetime.datetime):
        return float(now)
    if now.tzinfo is None:
        raise ValueError("now has no time zone; use datetime.now(UTC) or .astimezone()")
    return now.timestamp()
