"""Floods of output and of events, and whoever reads the log or does not: neither holds up the supervisor."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.supervision.worker_output import BYTES_A_SECOND
from supervisor.system.outlet import BACKLOG_BYTES, Outlet
from supervisor.telemetry import configure, events
from tests.faults.lone_worker import LoneWorker
from tests.site_under_test import PATIENCE, MakeSite, Site, wait_for

JOBS = """
import os
from ledger import record

def flood(payload, ctx):
    record("start", ctx)
    for _ in range(payload["mib"]):
        os.write(2, b"x" * ((1 << 20) - 1) + b"\\n")
    os.write(2, b"the last line\\n")
    record("end", ctx)
    if payload.get("die"):
        os._exit(3)

def work(payload, ctx):
    record("start", ctx); record("end", ctx)
"""
CONFIG = (
    '[pools.flood]\nhandler = "jobs:flood"\nworkers = 2\nmax_crashes = 1\n'
    '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
)


@pytest.mark.fault(37, 52)
def test_the_end_of_a_flood_is_kept_for_the_job_that_died_of_it(make_site: MakeSite) -> None:
    site = make_site(CONFIG, JOBS)
    site.start()
    job = site.queue.enqueue("flood", {"mib": 5, "die": True})
    site.queue.wait(job, timeout=20)
    [(stderr,)] = site.rows("SELECT stderr FROM job_errors WHERE job_id = ?", job)
    assert stderr.endswith("the last line\n")
    assert len(stderr) <= 8192


@contextmanager
def supervisor(site: Site) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One whose log goes into a pipe, and the end from which it could be read."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "run", "-c", str(site.config)],
        stdout=writer,
        stderr=writer,
        cwd=site.folder,
    )
    os.close(writer)
    try:
        yield process, reader
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.fault(52, 73)
def test_a_log_that_nobody_reads_any_more_blocks_nothing(make_site: MakeSite) -> None:
    site = make_site(CONFIG, JOBS)
    with supervisor(site) as (process, reader):
        flood = site.queue.enqueue("flood", {"mib": 8})
        site.done(flood)  # the pipe is full, and a megabyte waits
        for _ in range(3):
            site.done(site.queue.enqueue("work"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        os.close(reader)


@pytest.mark.fault(52)
def test_a_log_whose_reader_is_gone_ends_nothing(make_site: MakeSite) -> None:
    site = make_site(CONFIG, JOBS)
    with supervisor(site) as (process, reader):
        site.done(site.queue.enqueue("work"))
        os.close(reader)
        site.done(site.queue.enqueue("flood", {"mib": 2}))
        site.done(site.queue.enqueue("work"))
        wait_for(lambda: site.supervisor_status(process)["log_lost"] >= 2 << 20, "it to be counted")
        told = site.command("status").stdout
        assert (
            len(re.findall(rf"note: supervisor {process.pid}: [0-9.]+MiB of its log could not be written", told)) == 1
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.fault(52)
def test_what_a_slow_reader_misses_is_counted() -> None:
    reader, writer = os.pipe()
    outlet = Outlet(writer)
    line = json.dumps({"event": "x" * 1000}) + "\n"
    for _ in range(3 * BACKLOG_BYTES // len(line)):
        outlet.write(line)
    assert outlet.waiting
    lost: list[int] = []
    outlet.tell_lost(lost.append)
    assert lost == []  # not yet: it could not be told
    read = 0
    while outlet.waiting:
        read += len(os.read(reader, 1 << 20))
        outlet.flush()
    os.set_blocking(reader, False)
    read += len(os.read(reader, 1 << 20))
    assert read % len(line) == 0  # whole lines only
    outlet.tell_lost(lost.append)
    assert lost == [outlet.lost] == [3 * BACKLOG_BYTES // len(line) * len(line) - read]
    outlet.tell_lost(lost.append)
    assert len(lost) == 1
    assert os.get_blocking(writer)  # the file is not ours alone
    os.close(reader)
    outlet.write(line)  # that this was lost is told once, although that is lost, too
    for _ in range(3):
        outlet.tell_lost(lambda count: lost.append(count) or outlet.write("lost"))  # type: ignore[func-returns-value]
    assert lost[1:] == [len(line)]
    os.close(writer)


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
