"""The application with a state of a test's own.

What FastAPI works out for a route when it is first asked takes longer than most tests: all tests of a process ask one
application, and each request finds the state of the test that makes it. What an application keeps between requests,
the sums of the metrics, is shared, too: tests of these make one of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from supervisor.admin.api.run import DirectRun
from supervisor.admin.app import make_app
from supervisor.admin.state import AppState


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
        await DirectRun(app, self.state)(scope, receive, send)
