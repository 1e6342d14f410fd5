"""The application with a state of a test's own.

What FastAPI works out for a route when it is first asked takes longer than most tests: all tests of a process ask one
application, and each request finds the state of the test that makes it. What an application keeps between requests,
the sums of the metrics, is shared, too: tests of these make one of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from supervisor.admin.api.run import direct
from supervisor.admin.app import make_app
from supervisor.admin.keys import Keys
from supervisor.admin.requests import Requests
from supervisor.admin.state import AppState
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import JobStreams, OverviewWatch
from supervisor.client.queue import Queue
from supervisor.config.settings import AdminSettings
from supervisor.engine import open_engine


def state_for(url: str, settings: AdminSettings, keys: Keys, *pools: str) -> AppState:
    """The state of an application on a database; `close` its executor."""
    executor, queue = StoreExecutor(open_engine(url)), Queue(url)
    return AppState(
        settings, keys, executor, Requests(queue, executor), JobStreams(queue), OverviewWatch(executor), pools
    )


def http_scope(
    path: str, headers: Mapping[str, str], *, method: str = "GET", local: str = "127.0.0.1"
) -> dict[str, Any]:
    """A request as a server gives it to an application; `path` is with the query."""
    target, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": (local, 8787),
        "client": ("127.0.0.1", 1),
        "state": {},
    }


def new() -> FastAPI:
    return make_app(SimpleNamespace())  # type: ignore[arg-type] - each request brings its own


plain = functools.cache(new)


@dataclass
class Application:
    """`shared` makes the application when it is first needed, and returns the same one each time."""

    state: AppState
    shared: Callable[[], FastAPI] = field(default=plain)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.shared()
        app.state.state = self.state
        await direct(app, self.state)(scope, receive, send)
