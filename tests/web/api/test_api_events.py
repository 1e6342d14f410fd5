"""The state as server-sent events: at once, when something has changed, and nothing when nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor.admin import streams
from supervisor.admin.answers import Refused
from supervisor.admin.streams import LISTENERS
from tests.web.api.conftest import Site
from tests.web.application import http_scope

PATIENCE = 20.0


class Visitor:
    """Somebody who listens: an ASGI client that takes what comes, until it goes away."""

    def __init__(self, app: Any, path: str = "/api/admin/events", **headers: str) -> None:
        self._came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.parts: list[bytes] = []
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        scope = http_scope(path, {"host": "localhost"} | given)
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        await self._came.put(message)

    async def start(self) -> dict[str, Any]:
        return await asyncio.wait_for(self._came.get(), PATIENCE)

    async def part(self) -> bytes:
        message = await asyncio.wait_for(self._came.get(), PATIENCE)
        return bytes(message["body"])

    async def event(self) -> tuple[str, Any]:
        """The next that is no heartbeat."""
        while (part := await self.part()).startswith(b":"):
            pass
        first, second, end = part.decode().split("\n", 2)
        assert end == "\n"
        return first.removeprefix("event: "), json.loads(second.removeprefix("data: "))

    async def pending(self, number: int) -> None:
        """Wait until so many jobs are said to wait: what is dear may be a moment older than the rest."""
        while (await self.event())[1]["jobs"]["pending"] != number:
            pass

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, PATIENCE)


@pytest.fixture
def site(make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """It looks every few milliseconds."""
    monkeypatch.setattr(streams, "FRESH", 0.01)
    site = make_site()
    yield site
    site.client.run(nothing_left(site))
    assert site.state.watch.listeners == 0


async def nothing_left(site: Site) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while len(asyncio.all_tasks()) > 1:
        assert asyncio.get_running_loop().time() < deadline, asyncio.all_tasks()
        await asyncio.sleep(0.01)


async def test_the_state_comes_at_once_and_again_when_it_has_changed(site: Site, app: Any) -> None:
    visitor = Visitor(app)
    start = await visitor.start()
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    name, first = await visitor.event()
    site.desk.put()
    await visitor.pending(1)
    await visitor.leave()

    assert name == "overview"
    assert first["jobs"]["pending"] == 0
    assert set(first) == set((await site.state.watch.overview()).as_json())


async def test_the_passing_of_time_is_no_news(site: Site, app: Any) -> None:
    site.desk.put()
    looks = 0
    ask = site.state.executor.ask

    async def counted(question: Any) -> Any:
        nonlocal looks
        looks += 1
        return await ask(question)

    site.state.executor.ask = counted  # type: ignore[method-assign]
    visitor = Visitor(app)
    await visitor.start()
    await visitor.event()
    before = looks
    while looks < before + 5:
        await asyncio.sleep(0.01)
    assert visitor._came.empty()
    await visitor.leave()


async def test_silence_is_broken_by_heartbeats(site: Site, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.02)

    visitor = Visitor(app)
    await visitor.start()
    await visitor.event()
    assert [await visitor.part() for _ in range(2)] == [b": still here\n\n"] * 2
    await visitor.leave()


async def test_whoever_comes_later_is_told_at_once_too(site: Site, app: Any) -> None:
    visitors = []
    for _ in range(3):
        visitors.append(Visitor(app))
        await visitors[-1].start()
        assert (await visitors[-1].event())[0] == "overview"
    site.desk.put()
    for visitor in visitors:
        await visitor.pending(1)
    for visitor in visitors:
        await visitor.leave()


async def test_one_that_does_not_read_holds_up_nobody_and_gets_the_latest_in_the_end(site: Site, app: Any) -> None:
    slow, quick = Visitor(app), Visitor(app)
    for visitor in (slow, quick):
        await visitor.start()
        await visitor.event()
    slow.reading.clear()
    for number in range(1, 6):
        site.desk.put()
        await quick.pending(number)
    slow.reading.set()
    seen = [(await slow.event())[1]["jobs"]["pending"]]
    while seen[-1] < 5:
        seen.append((await slow.event())[1]["jobs"]["pending"])
    assert len(seen) <= 3  # what was being sent, what came before its turn, and the latest
    await slow.leave()
    await quick.leave()


async def test_trouble_with_the_database_is_told_and_its_end_too(site: Site, app: Any) -> None:
    aside = site.path.with_name("aside")
    site.path.rename(aside)
    visitor = Visitor(app)
    await visitor.start()
    name, trouble = await visitor.event()
    aside.rename(site.path)

    assert (name, "the database does not exist" in trouble["error"]) == ("trouble", True)
    assert (await visitor.event())[0] == "overview"
    await visitor.leave()


async def test_more_than_fifty_are_refused_until_one_goes(site: Site, app: Any) -> None:
    listeners = [site.state.watch.listen() for _ in range(LISTENERS)]
    with pytest.raises(Refused):
        site.state.watch.listen()
    refused = Visitor(app)
    start = await refused.start()
    assert start["status"] == 503
    assert b"retry-after" in dict(start["headers"])
    assert b'"error"' in await refused.part()
    listeners.pop()._leave()
    visitor = Visitor(app)
    assert (await visitor.start())["status"] == 200
    await visitor.leave()
    for listener in listeners:
        listener._leave()


@pytest.mark.parametrize("when", ["before anything", "after an event", "while nothing is read"])
async def test_a_client_that_goes_away_leaves_nothing_behind(site: Site, app: Any, when: str) -> None:
    visitor = Visitor(app)
    if when != "before anything":
        await visitor.start()
        await visitor.event()
    if when == "while nothing is read":
        visitor.reading.clear()
        site.desk.put()
    await visitor.leave()
