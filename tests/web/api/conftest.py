"""The application in this process, without its gate, on a real database; and a desk that moves jobs there."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from starlette.types import ASGIApp

from supervisor import Queue
from supervisor.admin.keys import keys_of
from supervisor.admin.requests import Requests
from supervisor.admin.state import AppState
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import JobStreams, OverviewWatch
from supervisor.admin.uploads import Uploads
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.spool import Spool
from tests.store.kit import Desk, supervisor_record
from tests.web.application import Application
from tests.web.client import SETTINGS

T = TypeVar("T")

POOL: dict[str, Any] = {
    "size": 1,
    "target": 1,
    "why": "min_workers = 1",
    "due": 0,
    "oldest_age": 0.0,
    "rate": 0.0,
    "problem": "",
    "fixed": None,
    "deaths": 0,
    "types": ["tag", "caption"],
    "capabilities": ["cpu"],
    "min_workers": 1,
    "max_workers": 4,
    "memory": {},
    "devices": {},
    "stale": {},
}
TYPES = ("tag", "caption", "mail", "few", "other", "nsfw", "App/Jobs:Send")  # of the configuration
LIMITS = {"few": 2}  # max_waiting, by type
LARGEST_FILE, LARGEST_SPOOL = 3 << 20, 4 << 20
KEEP_DONE = 60.0
BULLETIN: dict[str, Any] = {
    "pid": 1,
    "maintainer": 2,
    "stopping": "",
    "trouble": "",
    "templates": [],
    "pools": {"tag": POOL, "mail": POOL | {"types": ["mail"]}},
}


def as_reader(app: ASGIApp) -> ASGIApp:
    """The application for who has the read token."""

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"role": "read"}}, receive, send)

    return asked


class Client:
    """Asks an application in this process, one request after another on a loop of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._loop = asyncio.Runner()
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._loop.run(self._http.request(method, path, **more))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop.get_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something else on the loop."""
        return self._loop.run(work)

    def close(self) -> None:
        self._loop.run(self._http.aclose())
        self._loop.close()


@dataclass
class Site:
    """One database with an application on it. `desk` is the store, `client` asks the application."""

    engine: Engine
    path: Path
    state: AppState
    client: Client
    desk: Desk

    def get(self, path: str, expected: int = 200, /, **params: Any) -> Any:
        return checked(self.client.ask("GET", path, params=params), expected)

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return checked(self.client.ask("POST", path, **({} if body is None else {"json": body})), status)

    def put(self, path: str, body: Any, status: int = 200) -> Any:
        return checked(self.client.ask("PUT", path, json=body), status)

    def delete(self, path: str, status: int = 200) -> Any:
        return checked(self.client.ask("DELETE", path), status)

    def rows(self, sql: str = "SELECT * FROM jobs ORDER BY id", *parameters: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=10)) as connection:
            connection.text_factory = bytes
            connection.execute("PRAGMA ignore_check_constraints = ON")  # a row may be older than its fences
            return connection.execute(sql, parameters).fetchall()

    @property
    def everything(self) -> list[list[tuple[Any, ...]]]:
        """All that a request may change."""
        return [self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("jobs", "job_errors", "job_controls")]


def checked(response: httpx.Response, status: int) -> Any:
    """The JSON of an answer, which every strict parser takes."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    answer = json.loads(response.content.decode("utf-8", "strict"), parse_constant=refuse)
    if status >= 400:
        assert isinstance(answer["error"], str)
        assert answer["error"]
    return answer


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on the loop of its application."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["site"].client.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def app(site: Site) -> ASGIApp:
    return site.client.app


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes the application of a database with a supervisor, as far as the scoreboard shows one."""
    with contextlib.ExitStack() as stack:

        def make(
            *,
            supervised: bool = True,
            supervisor_status: dict[str, Any] | None = None,
            own: str = "",
            wake: Callable[[list[NewJob]], object] = lambda jobs: None,
            **settings: Any,
        ) -> Site:
            path = tmp_path / "jobs.db"
            engine = open_engine(f"sqlite:///{path}")
            desk = Desk.at(engine)
            stack.callback(desk.close)
            if supervised:
                supervise(engine, desk, tmp_path, supervisor_status or BULLETIN)
            asking = StoreExecutor(engine)
            stack.callback(asking.close)
            chosen = SETTINGS._replace(**settings)
            queue = Queue(engine.url)
            stack.callback(queue.close)
            requests = Requests(queue, asking, TYPES, LIMITS, wake)
            spool = Spool(tmp_path / "spool", LARGEST_FILE, LARGEST_SPOOL)
            uploads = Uploads(spool, engine.url, asking, KEEP_DONE)
            stack.callback(uploads._threads.shutdown)
            state = AppState(
                chosen,
                keys_of(chosen),
                asking,
                requests,
                JobStreams(queue),
                OverviewWatch(asking),
                ("tag", "mail"),
                own,
                uploads=uploads,
            )
            client = Client(Application(state))
            stack.callback(client.close)
            return Site(engine, path, state, client, desk)

        yield make


def supervise(
    engine: Engine, desk: Desk, folder: Path, supervisor_status: dict[str, Any], name: str = "s1", **fields: Any
) -> Scoreboard:
    """Register a supervisor whose lock cannot be judged, so that it is taken to live."""
    board = Scoreboard.create(folder / ("scoreboard" if name == "s1" else f"scoreboard-{name}"))
    board.post(supervisor_status)
    owner = engine.ownership.claim(name)
    owner.release()
    owner.path.unlink(missing_ok=True)
    owner.path.mkdir()
    record = supervisor_record(name, engine, str(owner.path), scoreboard=str(board.path), **fields)
    desk.maintenance.registry.register(record)
    return board


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()
