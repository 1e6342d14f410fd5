"""A job as server-sent events: what becomes of it and what it emits, for each who follows it, with one look for all."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from supervisor.admin import streams
from supervisor.domain.job import Claim, Status
from supervisor.domain.job_stream import encoded_chunk
from supervisor.domain.settlement import Failure, RetryPolicy, done, failed
from supervisor.ops import job_chunks
from supervisor.system.chunk_ring import ChunkWriter
from supervisor.system.scoreboard import chunks_of
from tests.web.api.conftest import Site, as_reader
from tests.web.api.test_api_events import PATIENCE, Visitor, nothing_left
from tests.web.client import SETTINGS


class Emitting:
    """A run as a worker would have it."""

    def __init__(self, site: Site, claim: Claim, slot: int = 1) -> None:
        self.job_id, self.token, self.attempt, self.emitted = claim.job_id, claim.token, claim.attempt, 0
        self._writer = ChunkWriter(chunks_of(site.path.parent / "scoreboard"), slot)

    def emit(self, *chunks: object) -> None:
        for chunk in chunks:
            self._writer.add(self, encoded_chunk(chunk))


class Event(NamedTuple):
    id: str
    name: str
    data: Any


class Follower(Visitor):
    """A client that follows a job."""

    def __init__(self, app: Any, job_id: int, **headers: str) -> None:
        super().__init__(app, f"/jobs/{job_id}/events", **headers)
        self._left_over: list[Event] = []

    async def next(self) -> Event:
        while not self._left_over:
            part = (await self.part()).decode()
            for event in part.split("\n\n")[:-1]:
                if not event.startswith(":"):
                    lines = dict(line.split(": ", 1) for line in event.split("\n"))
                    self._left_over.append(Event(lines["id"], lines["event"], json.loads(lines["data"])))
        return self._left_over.pop(0)

    async def until(self, name: str) -> list[Event]:
        """All events up to the next of this name."""
        found = [await self.next()]
        while found[-1].name != name:
            found.append(await self.next())
        return found


def chunks_in(events: list[Event]) -> list[Any]:
    return [event.data["chunk"] for event in events if event.name == "chunk"]


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Iterator[Site]:
    """It shows payloads; afterwards nothing is left of its streams."""
    site = make_site(show_payloads=True)
    yield site
    site.client.run(nothing_left(site))
    assert site.state.streams.listeners == 0


async def test_a_job_is_followed_from_its_start_to_its_end(site: Site, app: Any) -> None:
    job = site.desk.put()
    follower = Follower(app, job)
    start = await follower.start()
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    assert (await follower.next())[1:] == ("job", {
        "id": job, "status": "pending", "attempt": 0, "progress": None, "progress_text": None,
    })  # fmt: skip
    claim = site.desk.one()
    run = Emitting(site, claim)
    run.emit("Hello", {"tokens": 2})
    assert chunks_in([*await follower.until("chunk"), await follower.next()]) == ["Hello", {"tokens": 2}]
    run.emit("!")
    site.desk.settle(done(claim, '"Hello!"', started_at=1.0))
    rest = await follower.until("end")
    assert chunks_in(rest) == ["!"]
    assert rest[-1].data["result"] == "Hello!"
    await asyncio.wait_for(follower.task, PATIENCE)


async def test_who_comes_later_gets_all_chunks_and_who_comes_back_only_the_new_ones(site: Site, app: Any) -> None:
    job = site.desk.put()
    claim = site.desk.one()
    run = Emitting(site, claim)
    run.emit(*range(5))
    late = Follower(app, job)
    await late.start()
    seen = [await late.next() for _ in range(7)]
    assert [event.name for event in seen[:2]] == ["attempt", "job"]
    assert chunks_in(seen) == [0, 1, 2, 3, 4]
    back = Follower(app, job, last_event_id=seen[4].id)
    await back.start()
    site.desk.settle(done(claim, None, started_at=1.0))
    for follower, expected in ((late, []), (back, [3, 4])):
        assert chunks_in(await follower.until("end")) == expected
    after = Follower(app, job)
    await after.start()
    assert chunks_in(await after.until("end")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ended", [True, False])
async def test_who_comes_back_with_the_id_of_a_run_that_is_not_of_this_job_gets_all_chunks(
    site: Site, app: Any, ended: bool
) -> None:
    job = site.desk.put()
    claim = site.desk.one()
    Emitting(site, claim).emit("one", "two")
    if ended:
        site.desk.settle(done(claim, None, started_at=1.0))
    follower = Follower(app, job, last_event_id=f"{claim.token + 7}.1")
    await follower.start()
    events = [await follower.next() for _ in range(4)]
    assert sorted(event.name for event in events) == ["attempt", "chunk", "chunk", "end" if ended else "job"]
    assert chunks_in(events) == ["one", "two"]
    await follower.leave()


async def test_a_retry_is_announced_and_a_run_without_its_claim_reaches_nobody(site: Site, app: Any) -> None:
    job = site.desk.put()
    first = site.desk.one()
    run = Emitting(site, first)
    run.emit("one")
    follower = Follower(app, job)
    await follower.start()
    await follower.until("chunk")
    site.desk.settle(failed(first, Failure("exception", "no"), RetryPolicy(backoff="none", jitter=0), chance=0.0))
    while (await follower.until("job"))[-1].data["status"] != "pending":
        pass
    second = site.desk.one(now=2e9)
    run.emit("stale")
    Emitting(site, second, slot=2).emit("two")
    events = await follower.until("chunk")
    assert ("attempt", {"attempt": 2, "elsewhere": False}) in [event[1:] for event in events]
    assert events[-1].data == {"attempt": 2, "number": 1, "chunk": "two"}
    run.emit("stale again")
    site.desk.settle(done(second, None, started_at=1.0))
    assert chunks_in(await follower.until("end")) == []


async def test_whoever_is_too_late_or_too_slow_is_told_how_much_is_missing(site: Site, app: Any) -> None:
    job = site.desk.put()
    claim = site.desk.one()
    run = Emitting(site, claim)
    run.emit(*["x" * 9000] * 100)
    late = Follower(app, job)
    await late.start()
    seen = [*await late.until("lost")]
    lost = seen[-1].data["chunks"]
    assert 0 < lost < 100
    late.reading.clear()
    for _ in range(20):
        run.emit(*["y" * 9000] * 20)
        await asyncio.sleep(0.03)
    late.reading.set()
    site.desk.settle(done(claim, None, started_at=1.0))
    rest = await late.until("end")
    missing = sum(event.data["chunks"] for event in rest if event.name == "lost")
    assert lost + missing + len(chunks_in(rest)) == 500
    assert missing > 0


async def test_100_listeners_of_10_jobs_cost_one_look(site: Site, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = job_chunks.ChunkReader.read

    def counted(self: Any, slot: int, since: int) -> Any:
        reads.append(slot)
        return read(self, slot, since)

    monkeypatch.setattr(job_chunks.ChunkReader, "read", counted)
    monkeypatch.setattr(job_chunks, "EVERY", 0.2)
    jobs = [site.desk.put() for _ in range(10)]
    claims = [site.desk.one() for _ in jobs]
    runs = [Emitting(site, claim) for claim in claims]
    followers = [Follower(app, job) for job in jobs for _ in range(10)]
    for follower in followers:
        await follower.start()
        await follower.until("job")
    reads.clear()
    began = asyncio.get_running_loop().time()
    for run in runs:
        run.emit(*range(20))
    for follower in followers:
        seen = [await follower.next() for _ in range(20)]
        assert chunks_in(seen) == [*range(20)]
    looks = (asyncio.get_running_loop().time() - began) / 0.2 + 2
    assert len(reads) <= looks * 2  # slots 0 and 1
    site.desk.settle(*(done(claim, None, started_at=1.0) for claim in claims))
    for follower in followers:
        await follower.until("end")


async def test_no_more_than_the_limit_may_listen(site: Site, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FOLLOWERS", 1)
    job = site.desk.put()
    follower = Follower(app, job)
    await follower.start()
    second = Follower(app, job)
    start = await second.start()
    assert start["status"] == 503
    assert (b"retry-after", b"2") in start["headers"]
    await second.leave()
    await follower.leave()


async def test_heartbeats_come_while_nothing_happens_and_a_deleted_job_ends_the_stream(
    site: Site, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.02)
    job = site.desk.put()
    follower = Follower(app, job)
    await follower.start()
    await follower.next()
    assert await follower.part() == b": still here\n\n"
    site.rows("DELETE FROM jobs WHERE id = ?", job)
    assert (await follower.next())[1:] == ("end", {"status": "deleted"})


async def test_streams_end_with_the_process_without_an_end_of_the_job(site: Site, app: Any) -> None:
    follower = Follower(app, site.desk.put())
    await follower.start()
    await follower.next()
    site.state.streams.end()
    assert await follower.part() == b""
    await asyncio.wait_for(follower.task, PATIENCE)


@pytest.mark.parametrize(("reader", "show", "seen"), [(True, False, 0), (True, True, 2), (False, False, 2)])
async def test_chunks_and_the_result_are_for_the_full_token_and_otherwise_for_whom_payloads_are_shown(
    site: Site, app: Any, monkeypatch: pytest.MonkeyPatch, reader: bool, show: bool, seen: int
) -> None:
    monkeypatch.setattr(site.client.app, "state", replace(site.state, settings=SETTINGS._replace(show_payloads=show)))
    job = site.desk.put()
    claim = site.desk.one()
    full, follower = Follower(app, job), Follower(as_reader(app) if reader else app, job)
    Emitting(site, claim).emit("secret")
    site.desk.settle(done(claim, '"secret"', started_at=1.0))
    await full.start()
    await follower.start()
    assert chunks_in(await full.until("end")) == ["secret"]  # whoever else follows it
    found = await follower.until("end")
    assert json.dumps(found).count("secret") == seen
    [chunk] = [event.data for event in found if event.name == "chunk"]
    hidden = {"chunk": None, "redacted": True} if not seen else {"chunk": "secret"}
    assert chunk == {"attempt": 1, "number": 1} | hidden
    assert found[-1].data["redacted"] == (not seen)


def test_an_unknown_job_and_an_invalid_last_id_are_refused_in_one_sentence(make_site: Callable[..., Site]) -> None:
    site = make_site()
    assert site.get("/jobs/99/events", 404)["error"] == "no job has the id 99"
    job = site.desk.put()
    answer = site.client.ask("GET", f"/jobs/{job}/events", headers={"Last-Event-ID": "seven"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")
    assert site.state.streams.listeners == 0


def test_rings_with_anything_in_them_do_no_harm(make_site: Callable[..., Site]) -> None:
    site = make_site()
    job = site.desk.put()
    site.desk.finish(job, Status.FAILED)
    file: Path = chunks_of(site.path.parent / "scoreboard")
    chance = random.Random(7)
    for _ in range(20):
        file.write_bytes(chance.randbytes(300_000))
        assert "event: end" in site.client.ask("GET", f"/jobs/{job}/events").text
