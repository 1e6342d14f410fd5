"""Sentry: one event for each job that has failed for good.

    [defaults]
    middleware = ["supervisor.contrib.sentry:Sentry"]     # $SENTRY_DSN, $SENTRY_ENVIRONMENT, $SENTRY_RELEASE

For other options, make one in a module of your own, and name that:

    sentry = Sentry(dsn="https://…", each_attempt=True, before_send=clean)      # jobs.py; middleware = ["jobs:sentry"]

Needs the extra `sentry`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.domain.middleware import FailedJob, WorkerInfo
    from supervisor.worker.context import Context


class Sentry:
    """`each_attempt`: an event for each failed attempt, not only for the last one. `flush_seconds` is how long a worker
    that leaves waits for its events to be sent. `options` are those of `sentry_sdk.init`, which is called in each
    worker, after the fork; not if the application has called it itself.
    """

    def __init__(self, *, each_attempt: bool = False, flush_seconds: float = 2.0, **options: Any) -> None:
        import sentry_sdk

        self._sdk = sentry_sdk
        self._each_attempt = each_attempt
        self._flush_seconds = flush_seconds
        self._options = options
        self._last = threading.local()  # the scope of the run that has just failed in this thread

    def setup(self, worker: WorkerInfo) -> None:
        if not self._sdk.get_client().is_active():
            self._sdk.init(**self._options)
        self._sdk.set_tag("job.pool", worker.pool)

    def around_run(self, call: Callable[[], Any], ctx: Context) -> Any:
        """What a handler sends itself has the tags of its job, and the event of a failure has its breadcrumbs."""
        self._last.scope = None
        with self._sdk.isolation_scope() as scope:
            scope.set_tag("job.type", ctx.type)
            if ctx.job_id:  # a batch has none
                scope.set_tag("job.id", ctx.job_id)
                scope.set_tag("job.attempt", ctx.attempt)
            try:
                return call()
            except BaseException:
                self._last.scope = scope
                raise

    def on_failure(self, job: FailedJob, error: BaseException) -> None:
        if not job.final and not self._each_attempt:
            return
        run = getattr(self._last, "scope", None) or self._sdk.get_isolation_scope()
        with self._sdk.scope.use_isolation_scope(run.fork()), self._sdk.new_scope() as scope:
            for tag in ("id", "type", "attempt", "pool"):
                scope.set_tag(f"job.{tag}", getattr(job, tag))
            scope.set_context("job", {**job._asdict(), "delay": job.delay or None})
            scope.set_transaction_name(job.type)
            scope.capture_exception(error)

    def teardown(self, worker: WorkerInfo) -> None:
        self._sdk.flush(timeout=self._flush_seconds)
