"""Handlers that log without end, or set the logging of their whole process: neither reaches the worker's own events."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from supervisor.supervision.worker_output import BYTES_A_SECOND
from supervisor.telemetry import configure, events, unconfigure
from tests.faults.lone_worker import LoneWorker
from tests.site_under_test import MakeSite, wait_for

HANDLERS = """
import os, signal, structlog, sys, time
from ledger import record

def raises(*_):
    raise RuntimeError("a processor")

class Stream:
    write = flush = raises

def work(payload, ctx):
    record("start", ctx)
    if payload.get("configures"):
        structlog.configure(processors=[raises], wrapper_class=raises, logger_factory=raises, context_class=raises)
        signal.signal(signal.SIGRTMIN + 2, raises)  # so that the worker has something to say
        time.sleep(0.02)
    log = structlog.get_logger() if payload.get("by") == "structlog" else ctx.log
    until = time.monotonic() + payload.get("seconds", 0)
    while time.monotonic() < until:
        log.info("flood", text="x" * 1000)
    if payload.get("says"):
        ctx.log.info("heard")
    record("end", ctx)
    return {"pid": os.getpid()}
"""
POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'


@pytest.mark.fault(52)
def test_a_workers_own_events_survive_what_a_handler_does_to_structlog(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    worker = LoneWorker(site)
    site.done(site.queue.enqueue("work", {"configures": True, "says": True}))
    assert wait_for(lambda: site.event("heard"), "the job's event")
    assert wait_for(lambda: site.event("process_changed"), "the worker's own event")
    assert worker.ended()[0] == 0


@pytest.mark.fault(52)
@pytest.mark.parametrize("by", ["ctx.log", pytest.param("structlog", marks=pytest.mark.long)])
def test_a_flood_of_events_is_bounded_and_counted(make_site: MakeSite, by: str) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    before = site.log.stat().st_size
    site.done(site.queue.enqueue("work", {"seconds": 2, "by": by}))
    dropped = wait_for(lambda: site.event("output_dropped"), "the log to say what was dropped")
    assert dropped["bytes"] > 0
    assert dropped["worker"] == "work-1"
    assert site.log.stat().st_size - before < 4 * BYTES_A_SECOND
    assert len([event for event in site.events() if event["event"] == "output_dropped"]) <= 4
    site.done(site.queue.enqueue("work", {"says": True}))
    assert wait_for(lambda: site.event("heard"), "what is said afterwards")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("no stream")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where events go, as JSON."""
    stream = io.StringIO()
    configure("json", "info", stream)
    yield stream
    unconfigure()


@pytest.mark.fault(52)
def test_nothing_that_becomes_of_an_event_reaches_the_code_that_it_tells_of(stream: io.StringIO) -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise ValueError

    log = events(process="worker")
    log.info("odd", what=Unspeakable())
    log.info("plain")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["odd", "plain"]
    configure("json", "info", Broken())
    log.info("nobody reads it")


@pytest.mark.fault(52)
def test_loggers_that_were_made_before_write_as_is_configured_now(stream: io.StringIO) -> None:
    log, later = events(process="worker"), io.StringIO()
    configure("json", "error", later)
    log.info("below the level")
    log.error("said")
    assert [json.loads(line)["event"] for line in later.getvalue().splitlines()] == ["said"]
    assert not stream.getvalue()
