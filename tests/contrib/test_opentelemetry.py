"""The OpenTelemetry middleware with the real SDK: one trace from a request to the run, across processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor import Queue
from tests.site_under_test import HANDLERS, Site

pytest.importorskip("opentelemetry.sdk")

MakeSite = Callable[..., Site]
Spans = dict[str, dict[str, Any]]  # by name
WORKING = (
    HANDLERS
    + """
import json
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from supervisor.contrib.opentelemetry import OpenTelemetry

class ToFile(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            for span in spans:
                file.write(json.dumps({"pid": os.getpid(), **json.loads(span.to_json())}) + "\\n")
        return SpanExportResult.SUCCESS

def provider():
    made = TracerProvider()
    made.add_span_processor(BatchSpanProcessor(ToFile()))
    return made

tracing = OpenTelemetry(provider=provider)
linking = OpenTelemetry(provider=provider, link=True)

def first(payload, ctx):
    ctx.enqueue("second", {})

async def asynchronous(payload, ctx):
    from opentelemetry import trace
    with trace.get_tracer("mine").start_as_current_span("inner"):
        pass

def failing(payload, ctx):
    raise ValueError("no")

class Batch:
    def handle_batch(self, payloads, ctx):
        return [None] * len(payloads)
"""
)
POOLS = """
[defaults]
middleware = ["jobs:tracing"]
retry = { max_attempts = 1 }
workers = 1
[pools.first]
handler = "jobs:first"
[pools.second]
handler = "jobs:noop"
[pools.asynchronous]
handler = "jobs:asynchronous"
[pools.failing]
handler = "jobs:failing"
[pools.linked]
handler = "jobs:noop"
middleware = ["jobs:linking"]
[pools.batch]
handler = "jobs:Batch"
batch_size = 4
batch_wait = "5s"
"""


class Program:
    """A program that enqueues, whose spans stay in memory."""

    def __init__(self, url: str) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from supervisor.contrib.opentelemetry import OpenTelemetry

        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        middleware = OpenTelemetry()
        middleware._provider = self.provider  # in a program of its own it is the global one
        self.queue = Queue(url, middleware=[middleware])

    def request(self, *types: str) -> tuple[list[int], str, list[str]]:
        """Enqueue in one request: the ids of the jobs, the trace, the spans of the enqueues."""
        self.exporter.clear()
        with self.provider.get_tracer("web").start_as_current_span("POST /pictures") as span:
            ids = [self.queue.enqueue(type_, {}) for type_ in types]
        creates = [s for s in self.exporter.get_finished_spans() if s.name.startswith("create ")]
        return ids, f"0x{span.get_span_context().trace_id:032x}", [f"0x{s.context.span_id:016x}" for s in creates]


@pytest.fixture
def traced(make_site: MakeSite) -> Iterator[tuple[Site, Program]]:
    site = make_site(POOLS, WORKING)
    program = Program(site.url)
    yield site, program
    program.queue.close()


def spans(site: Site) -> Spans:
    return {span["name"]: span for span in map(json.loads, (site.folder / "spans").read_text().splitlines())}


def run_of(traced: tuple[Site, Program], type_: str, *more: int) -> tuple[int, str, list[str], Spans]:
    """Run one job that a request has enqueued, and those whose ids follow by so many: its id, the trace, the spans of
    the enqueues, and all spans of the workers.
    """
    site, program = traced
    process = site.start()
    [job], trace, created = program.request(type_)
    for number in (0, *more):
        program.queue.wait(job + number, timeout=30)
    site.stop(process)
    return job, trace, created, spans(site)


def test_one_trace_from_the_request_to_the_run_and_to_what_it_enqueues(traced: tuple[Site, Program]) -> None:
    job, trace, [created], found = run_of(traced, "first", 1)

    assert {span["context"]["trace_id"] for span in found.values()} == {trace}
    run = found["process first"]
    assert run["parent_id"] == created
    assert run["kind"] == "SpanKind.CONSUMER"
    assert (
        run["attributes"].items()
        >= {
            "messaging.system": "job_supervisor",
            "messaging.destination.name": "first",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.message.id": str(job),
            "messaging.consumer.group.name": "first",
        }.items()
    )
    child = found["create second"]
    assert child["parent_id"] == run["context"]["span_id"]
    assert found["process second"]["parent_id"] == child["context"]["span_id"]
    assert found["process second"]["pid"] != run["pid"], "another worker"


def test_spans_of_an_async_handler_are_inside_its_run(traced: tuple[Site, Program]) -> None:
    _, trace, _, found = run_of(traced, "asynchronous")

    assert found["inner"]["parent_id"] == found["process asynchronous"]["context"]["span_id"]
    assert found["inner"]["context"]["trace_id"] == trace


def test_an_error_is_the_status_of_the_span(traced: tuple[Site, Program]) -> None:
    run = run_of(traced, "failing")[-1]["process failing"]
    assert run["status"]["status_code"] == "ERROR"
    assert run["attributes"]["error.type"] == "ValueError"
    assert [event["name"] for event in run["events"]] == ["exception"]


def test_a_linked_run_has_a_trace_of_its_own(traced: tuple[Site, Program]) -> None:
    _, trace, [created], found = run_of(traced, "linked")

    run = found["process linked"]
    assert run["parent_id"] is None
    assert run["context"]["trace_id"] != trace
    assert [link["context"]["span_id"] for link in run["links"]] == [created]


def test_a_batch_is_linked_to_each_of_its_jobs(traced: tuple[Site, Program]) -> None:
    site, program = traced
    ids, _, created = program.request(*["batch"] * 4)
    plain = site.queue  # without middleware, and so without a trace
    process = site.start()
    for job in ids:
        plain.wait(job, timeout=30)
    site.stop(process)

    run = spans(site)["process batch"]
    assert run["attributes"]["messaging.batch.message_count"] == 4
    assert sorted(link["context"]["span_id"] for link in run["links"]) == sorted(created)
    assert "messaging.message.id" not in run["attributes"]


def test_a_job_without_a_trace_starts_one(traced: tuple[Site, Program]) -> None:
    site, _ = traced
    process = site.start()
    job = site.queue.enqueue("linked", meta={"traceparent": 5, "other": "x"})
    site.queue.wait(job, timeout=30)
    other = site.queue.enqueue("second", meta={"traceparent": "nonsense"})
    site.queue.wait(other, timeout=30)
    site.stop(process)

    assert [spans(site)[f"process {name}"]["parent_id"] for name in ("linked", "second")] == [None, None]
