"""The Sentry middleware with the real SDK, whose transport is a file: in real workers, forked and spawned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.samples import sampled
from tests.site_under_test import HANDLERS, Site, wait_for

pytest.importorskip("sentry_sdk")

MakeSite = Callable[..., Site]
WORKING = (
    HANDLERS
    + """
import json, logging
from sentry_sdk.transport import Transport
from supervisor import Fail
from supervisor.contrib.sentry import Sentry

class ToFile(Transport):
    def capture_envelope(self, envelope):
        with open("events", "a") as file:
            for item in envelope.items:
                if item.type == "event":
                    file.write(json.dumps({"pid": os.getpid(), **item.payload.json}) + "\\n")

sentry = Sentry(dsn="https://key@127.0.0.1/1", transport=ToFile())
each = Sentry(dsn="https://key@127.0.0.1/1", transport=ToFile(), each_attempt=True)

def inner(n):
    raise ValueError(f"cannot do {n}")

def failing(payload, ctx):
    import sentry_sdk
    sentry_sdk.add_breadcrumb(message="on the way")
    inner(payload["n"])

async def afailing(payload, ctx):
    inner(payload["n"])
"""
)
POOL = """
[defaults]
middleware = ["jobs:{which}"]
[pools.{pool}]
handler = "jobs:{pool}"
workers = 1
start = "{start}"
retry = {{ max_attempts = 3, base = "10ms" }}
"""


def events(site: Site) -> list[dict[str, Any]]:
    file = site.folder / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize(
    ("pool", "start"), sampled([("failing", "fork"), ("afailing", "fork"), ("failing", "spawn")], quick=2)
)
def test_a_job_that_fails_for_good_is_one_event(make_site: MakeSite, pool: str, start: str) -> None:
    site = make_site(POOL.format(which="sentry", pool=pool, start=start), WORKING)
    process = site.start()
    job = site.queue.enqueue(pool, {"n": 5})
    assert site.queue.wait(job, timeout=30).attempts == 3
    site.stop(process)

    [event] = events(site)
    tags = {name: str(value) for name, value in event["tags"].items()}
    assert tags.items() >= {"job.id": str(job), "job.type": pool, "job.attempt": "3", "job.pool": pool}.items()
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "cannot do 5")
    assert [frame["function"] for frame in error["stacktrace"]["frames"]][-2:] == [pool, "inner"]
    assert {frame["module"] for frame in error["stacktrace"]["frames"]} == {"jobs"}, "the handler's own stack"
    assert event["contexts"]["job"]["final"] is True
    if pool == "failing":
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["on the way"], "of this run alone"


def test_each_attempt_is_an_event_if_asked_for(make_site: MakeSite) -> None:
    site = make_site(POOL.format(which="each", pool="failing", start="fork"), WORKING)
    process = site.start()
    job = site.queue.enqueue("failing", {"n": 5})
    site.queue.wait(job, timeout=30)
    site.stop(process)

    assert [str(event["tags"]["job.attempt"]) for event in events(site)] == ["1", "2", "3"]


def test_events_are_sent_by_the_sdks_own_thread_before_the_worker_leaves(make_site: MakeSite) -> None:
    """Against an HTTP server of our own: the SDK's thread is made in the worker, and flushed at its end."""
    import gzip
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    bodies: list[bytes] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        dsn = f"http://key@127.0.0.1:{server.server_port}/1"
        site = make_site(
            f"""
[pools.failing]
handler = "jobs:failing"
middleware = ["supervisor.contrib.sentry:Sentry"]
workers = 1
env = {{ SENTRY_DSN = "{dsn}" }}
retry = {{ max_attempts = 1 }}
""",
            WORKING,
        )
        process = site.start()
        for n in range(3):
            site.queue.wait(site.queue.enqueue("failing", {"n": n}), timeout=30)
        site.stop(process)
        wait_for(lambda: sum(b"cannot do" in body for body in bodies) == 3, "three events")
        server.shutdown()
        thread.join()
