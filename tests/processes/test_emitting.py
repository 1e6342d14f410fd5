"""Handlers that emit while clients follow their jobs: every kind of worker, and deaths of each process."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from supervisor import Status
from supervisor.system.chunk_ring import REGION
from tests.samples import sampled
from tests.site_under_test import Site, kill, pool, wait_for
from tests.web.client import Admin, admin_of

MakeSite = Callable[..., Site]

ADMIN = '[admin]\nlisten = "127.0.0.1:0"\nshow_payloads = true\n'
HANDLERS = """
import asyncio, os, time
from pathlib import Path

def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.005)

def text(payload, ctx):
    for word in payload["words"]:
        ctx.emit(word)
    return len(payload["words"])

async def later(payload, ctx):
    for word in payload["words"]:
        ctx.emit(word)
        await asyncio.sleep(0.001)
    return len(payload["words"])

class Together:
    def handle_batch(self, payloads, ctx):
        for payload, job in zip(payloads, ctx.jobs):
            for word in payload["words"]:
                job.emit(word)
        return [len(payload["words"]) for payload in payloads]

def held(payload, ctx):
    ctx.emit(f"begin {ctx.token}")
    wait_for_file(payload["until"])
    ctx.emit(f"end {ctx.token}")

def endless(payload, ctx):
    number = 0
    while True:
        number += 1
        ctx.emit({"number": number, "text": "x" * payload["size"]})

def huge(payload, ctx):
    try:
        ctx.emit("x" * 100_000_000)
    except ValueError as error:
        return str(error)

def late(payload, ctx):
    ctx.emit("before")
    while not ctx.cancelled:
        time.sleep(0.005)
    ctx.emit("after")
    return "done"

def forks(payload, ctx):
    ctx.emit("parent")
    if os.fork() == 0:
        ctx.emit("child")
        os._exit(0)
    os.wait()
    ctx.emit("parent")
"""
PROGRAM = """
import sys
import job_handler, jobs
job_handler.serve(jobs.Together if sys.argv[1:] else jobs.text)
"""
KINDS = {
    "fork": 'handler = "jobs:text"',
    "concurrency": 'handler = "jobs:later"\nconcurrency = 4',
    "threads": 'handler = "jobs:text"\nconcurrency = 4',
    "batches": 'handler = "jobs:Together"\nbatch_size = 8',
    "program": 'command = ["PYTHON", "program.py"]',
    "spawn": 'handler = "jobs:text"\nstart = "spawn"',
    "async": 'handler = "jobs:later"',
    "program with batches": 'command = ["PYTHON", "program.py", "batches"]\nbatch_size = 8',
}


class Event(NamedTuple):
    id: str
    name: str
    data: Any


@contextmanager
def followed(admin: Admin, job: int, last: str = "") -> Iterator[Iterator[Event]]:
    headers = admin.bearer | ({"Last-Event-ID": last} if last else {})
    timeout = httpx.Timeout(30, connect=10)
    with (
        httpx.Client(base_url=admin.listen, headers=headers, timeout=timeout) as client,
        client.stream("GET", f"/jobs/{job}/events") as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Iterator[Event]:
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif "event" in found:
            yield Event(found["id"], found["event"], json.loads(found["data"]))
            found = {}


def until(stream: Iterator[Event], name: str) -> list[Event]:
    seen = []
    for event in stream:
        seen.append(event)
        if event.name == name:
            return seen
    raise AssertionError(f"no {name}: {seen}")


def chunks(seen: list[Event]) -> list[Any]:
    return [event.data["chunk"] for event in seen if event.name == "chunk"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", sampled(KINDS, quick=5))
def test_what_any_worker_emits_reaches_who_follows_and_who_comes_afterwards(make_site: MakeSite, kind: str) -> None:
    pool = KINDS[kind].replace("PYTHON", sys.executable)
    site = make_site(f"[pools.text]\n{pool}\nworkers = 1\n{ADMIN}", HANDLERS)
    (site.folder / "program.py").write_text(PROGRAM)
    admin = admin_of(site, site.start())
    site.queue.pause("text", force=True)
    payloads = [{"words": [f"{n} {word}" for word in ("one", "two", "three")]} for n in range(4)]
    jobs = [site.queue.enqueue("text", payload) for payload in payloads]
    with followed(admin, jobs[0]) as stream:
        assert next(stream).data["status"] == "pending"
        site.queue.resume("text")
        seen = until(stream, "end")
    assert chunks(seen) == payloads[0]["words"]
    for job, payload in zip(jobs, payloads, strict=True):
        site.queue.wait(job, 30)
        with followed(admin, job) as stream:
            seen = until(stream, "end")
        assert chunks(seen) == payload["words"]
        assert (seen[-1].data["status"], seen[-1].data["result"]) == ("done", 3)


@pytest.mark.fault(104)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("killed", ["worker", "admin process", "supervisor"])
def test_a_stream_goes_on_after_the_death_of_any_process(make_site: MakeSite, killed: str) -> None:
    site = make_site(pool("held") + ADMIN, HANDLERS)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    [job], go = site.held("held")
    with followed(admin, job) as stream:
        seen = until(stream, "chunk")
        assert chunks(seen) == ["begin 1"]
        if killed == "worker":
            kill(site.workers("held")[0].pid)
            until(stream, "attempt")
            go.touch()
            seen = until(stream, "end")
            assert [words.split()[0] for words in chunks(seen)] == ["begin", "end"]
            assert "begin 1" not in chunks(seen)
            return
        kill(admin.pid if killed == "admin process" else supervisor.pid)
        with pytest.raises((httpx.TransportError, AssertionError)):
            until(stream, "end")
    if killed == "supervisor":
        supervisor.wait()
        wait_for(lambda: not site.survivors(supervisor), "every process to end")
        supervisor = site.start()
    again = admin_of(site, supervisor, other_than=admin.pid)
    with followed(again, job, seen[-1].id) as stream:
        if killed == "supervisor":
            until(stream, "attempt")
        go.touch()
        seen = until(stream, "end")
    expected = ["begin", "end"] if killed == "supervisor" else ["end"]
    assert [words.split()[0] for words in chunks(seen)] == expected
    wait_for(lambda: len([*site.folder.rglob("*.chunks")]) == 1, "the file of a dead supervisor to be removed")


@pytest.mark.fault(105)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("size", sampled([16_000, 1], quick=1))
def test_an_endless_handler_fills_its_ring_and_a_huge_chunk_is_refused(make_site: MakeSite, size: int) -> None:
    site = make_site(pool("endless", cancel_grace="0s") + pool("huge") + ADMIN, HANDLERS)
    admin = admin_of(site, site.start())
    huge = site.done(site.queue.enqueue("huge")).result
    assert huge.startswith("chunk: it has 100000002 bytes of JSON; the limit is")
    job = site.queue.enqueue("endless", {"size": size})
    with followed(admin, job) as stream:
        got, lost = 0, 0
        for event in stream:
            if event.name == "chunk":
                got += 1
                assert event.data["number"] == got + lost == event.data["chunk"]["number"]
            elif event.name == "lost":
                lost += event.data["chunks"]
            if got > 300:
                break
        assert admin.get("/healthz") == 200
        assert max(file.stat().st_blocks * 512 for file in site.folder.rglob("*.chunks")) <= REGION + 8192
        site.queue.cancel(job)
        assert until(stream, "end")[-1].data["status"] == "cancelled"


@pytest.mark.fault(106)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("handler", "expected"), [("late", ["before"]), ("forks", ["parent", "parent"])])
def test_a_cancelled_run_and_a_fork_of_a_handler_emit_to_nobody(
    make_site: MakeSite, handler: str, expected: list[str]
) -> None:
    site = make_site(pool(handler) + ADMIN, HANDLERS)
    admin = admin_of(site, site.start())
    job = site.queue.enqueue(handler)
    with followed(admin, job) as stream:
        seen = until(stream, "chunk")
        if handler == "late":
            site.queue.cancel(job)
        seen += until(stream, "end")
    assert seen[-1].data["status"] == Status.DONE
    assert chunks(seen) == expected


@pytest.mark.timeout(180)
@pytest.mark.parametrize("clients", sampled([25, 100], quick=1))
def test_many_clients_follow_one_job_and_each_gets_all_of_it(make_site: MakeSite, clients: int) -> None:
    site = make_site(pool("held") + ADMIN, HANDLERS)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    [job], go = site.held("held")
    found: list[list[Any]] = []
    begun = threading.Barrier(clients + 1, timeout=60)

    def follow() -> None:
        with followed(admin, job) as stream:
            seen = until(stream, "chunk")
            begun.wait()
            found.append(chunks(seen + until(stream, "end")))

    threads = [threading.Thread(target=follow) for _ in range(clients)]
    for thread in threads:
        thread.start()
    begun.wait()
    go.touch()
    for thread in threads:
        thread.join(60)
    assert found == [["begin 1", "end 1"]] * clients
    assert site.stop(supervisor, signal.SIGTERM) == 0
    assert not [*site.folder.rglob("*.chunks")]
