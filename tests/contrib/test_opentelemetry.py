"""The OpenTelemetry middleware with the real SDK: one trace from a request to the run, across processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Queue
from tests.site_under_test import HANDLERS, Site, wait_for

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


class Requests:
    """The requests of a program whose spans stay in memory."""

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

    def enqueue(self, *types: str) -> tuple[list[int], str, list[str]]:
        """In one request: the ids of the jobs, the trace, the spans of the enqueues."""
        self.exporter.clear()
        with self.provider.get_tracer("web").start_as_current_span("POST /pictures") as span:
            ids = [self.queue.enqueue(type_, {}) for type_ in types]
        creates = [s for s in self.exporter.get_finished_spans() if s.name.startswith("create ")]
        return ids, f"0x{span.get_span_context().trace_id:032x}", [f"0x{s.context.span_id:016x}" for s in creates]


def spans_of(site: Site) -> Spans:
    """Those of the workers, by name, when all jobs have been run."""
    process = site.start()
    types = [name.strip("[]").removeprefix("pools.") for name in POOLS.splitlines() if name.startswith("[pools.")]
    wait_for(lambda: not site.queue.count(types, ("pending", "running")), "the end of all jobs")
    site.stop(process)
    return {span["name"]: span for span in map(json.loads, (site.folder / "spans").read_text().splitlines())}


def test_spans_lead_from_a_request_to_the_runs_of_its_jobs(make_site: MakeSite) -> None:
    site = make_site(POOLS, WORKING)
    requests = Requests(site.url)
    [first], trace, [created] = requests.enqueue("first")
    others = {type_: requests.enqueue(type_) for type_ in ("asynchronous", "failing", "linked")}
    _, _, in_batch = requests.enqueue(*["batch"] * 4)
    found = spans_of(site)
    requests.queue.close()

    run, child, grandchild = (found[name] for name in ("process first", "create second", "process second"))
    assert {span["context"]["trace_id"] for span in (run, child, grandchild)} == {trace}
    assert run["parent_id"] == created
    assert run["kind"] == "SpanKind.CONSUMER"
    attributes = {
        "messaging.system": "job_supervisor",
        "messaging.destination.name": "first",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.message.id": str(first),
        "messaging.consumer.group.name": "first",
    }
    assert run["attributes"].items() >= attributes.items()
    assert child["parent_id"] == run["context"]["span_id"]
    assert grandchild["parent_id"] == child["context"]["span_id"]
    assert grandchild["pid"] != run["pid"], "another worker"

    inner = found["inner"]  # of an async handler
    assert inner["parent_id"] == found["process asynchronous"]["context"]["span_id"]
    assert inner["context"]["trace_id"] == others["asynchronous"][1]

    failed = found["process failing"]
    assert failed["status"]["status_code"] == "ERROR"
    assert failed["attributes"]["error.type"] == "ValueError"
    assert [event["name"] for event in failed["events"]] == ["exception"]

    linked = found["process linked"]  # has a trace of its own
    assert linked["parent_id"] is None
    assert linked["context"]["trace_id"] != others["linked"][1]
    assert [link["context"]["span_id"] for link in linked["links"]] == others["linked"][2]

    together = found["process batch"]  # is linked to each of its jobs
    assert together["attributes"]["messaging.batch.message_count"] == 4
    assert sorted(link["context"]["span_id"] for link in together["links"]) == sorted(in_batch)
    assert "messaging.message.id" not in together["attributes"]


def test_a_job_without_a_trace_starts_one(make_site: MakeSite) -> None:
    site = make_site(POOLS, WORKING)
    site.queue.enqueue("linked", meta={"traceparent": 5, "other": "x"})
    site.queue.enqueue("second", meta={"traceparent": "nonsense"})
    found = spans_of(site)
    assert [found[f"process {name}"]["parent_id"] for name in ("linked", "second")] == [None, None]
