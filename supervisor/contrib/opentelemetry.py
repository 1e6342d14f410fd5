"""OpenTelemetry: one trace from the request that enqueues a job to its run.

    [defaults]
    middleware = ["supervisor.contrib.opentelemetry:OpenTelemetry"]        # $OTEL_EXPORTER_OTLP_ENDPOINT and the like

and in the program that enqueues, whose SDK is set up as usual:

    queue = Queue("sqlite:///app.db", middleware=[OpenTelemetry()])

The trace travels in `meta` of the job, as `traceparent` and `tracestate` (W3C Trace Context). Span names and attributes
follow the semantic conventions for messaging. Needs the extra `opentelemetry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from supervisor.domain.errors import Snooze

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from supervisor.domain.middleware import EnqueuedJob, WorkerInfo
    from supervisor.worker.context import Context

_SYSTEM = "job_supervisor"


class OpenTelemetry:
    """The span of a run is a child of the span that enqueued the job; with `link`, it starts a trace of its own that is
    linked to it, for jobs that run long after. The span of a batch is linked to the span of each of its jobs.

    `provider` makes the tracer provider of a worker, after its fork. Without it that is the application's, if it has
    set one, else one that exports by OTLP over HTTP. `flush_seconds` is how long a worker that leaves waits for its
    spans to be exported.
    """

    def __init__(
        self, *, link: bool = False, provider: Callable[[], TracerProvider] | None = None, flush_seconds: float = 2.0
    ) -> None:
        from opentelemetry import propagate, trace

        self._trace, self._propagate = trace, propagate
        self._link = link
        self._make = provider
        self._flush_seconds = flush_seconds
        self._provider: Any = None
        self._pool = ""

    def setup(self, worker: WorkerInfo) -> None:
        self._pool = worker.pool
        current = self._trace.get_tracer_provider()
        if self._make is not None:
            self._provider = self._make()
        elif isinstance(current, self._trace.ProxyTracerProvider):
            self._provider = _exporting()
        else:
            self._provider = current
        if self._provider is not current:
            self._trace.set_tracer_provider(self._provider)

    def on_enqueue(self, job: EnqueuedJob) -> None:
        """A span for the creation of the job; its context is stored in `meta`."""
        with self._tracer().start_as_current_span(
            f"create {job.type}", kind=self._trace.SpanKind.PRODUCER, attributes=_attributes(job.type, "create")
        ):
            self._propagate.inject(job.meta)

    def around_run(self, call: Callable[[], Any], ctx: Context) -> Any:
        jobs = getattr(ctx, "jobs", None)
        enqueued = list(self._enqueued(jobs or (ctx,)))
        alone = jobs is None and not self._link
        attributes = _attributes(ctx.type, "process") | {"messaging.consumer.group.name": self._pool}
        if jobs is None:
            attributes |= {"messaging.message.id": str(ctx.job_id), "job.attempt": ctx.attempt}
        else:
            attributes |= {"messaging.batch.message_count": len(jobs)}
        with self._tracer().start_as_current_span(
            f"process {ctx.type}".rstrip(),
            context=self._trace.set_span_in_context(enqueued[0]) if alone and enqueued else self._no_context(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            links=() if alone else [self._trace.Link(span.get_span_context()) for span in enqueued],
        ) as span:
            try:
                return call()
            except BaseException as error:
                if not isinstance(error, Snooze):
                    span.record_exception(error)
                    span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
                    span.set_attribute("error.type", type(error).__qualname__)
                raise

    def teardown(self, worker: WorkerInfo) -> None:
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush(int(self._flush_seconds * 1000))

    def _tracer(self) -> Any:
        return self._trace.get_tracer("job-supervisor", tracer_provider=self._provider)

    def _enqueued(self, jobs: Any) -> Iterator[Span]:
        """The spans in which these jobs were created, as far as they have one."""
        for job in jobs:
            meta = {key: value for key, value in job.meta.items() if isinstance(value, str)}
            span = self._trace.get_current_span(self._propagate.extract(meta, context=self._no_context()))
            if span.get_span_context().is_valid:
                yield span

    def _no_context(self) -> Any:
        from opentelemetry.context import Context as Nothing

        return Nothing()


def _attributes(type_: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": type_,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _exporting() -> TracerProvider:
    """A provider that is configured by the environment variables of OpenTelemetry."""
    import os

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "job-supervisor"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
