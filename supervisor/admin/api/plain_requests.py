"""`POST /run` past the framework's routing, which takes longer than everything else that this process does for it.

Only requests whose parameters are valid and whose payload is JSON. All others take the usual way, which says what is
wrong with them.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.admin.api import models, problems, run
from supervisor.admin.state import AppState
from supervisor.admin.uploads import is_file

_ADDRESS = "/run/"
_KEY = re.compile(models.IDEMPOTENCY_KEY)
_type = TypeAdapter(models.JobType)


class PlainRequests:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST" and scope["path"].startswith(_ADDRESS):
            request = Request(scope, receive, send)
            if (query := _query(request)) is not None:
                await self._answer(request, query, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, request: Request, query: run.RunQuery, send: Send) -> None:
        type_, key = request.scope["path"].removeprefix(_ADDRESS), request.headers.get("idempotency-key")
        try:
            response = await run.run(self._state, request, type_, query, key)
        except problems.TOLD as error:
            response = await problems.told(request, error)
        await response(request.scope, request.receive, send)


def _query(request: Request) -> run.RunQuery | None:
    """None for a request that takes the usual way."""
    if is_file("POST", _ADDRESS, request.headers):
        return None
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    keys = request.headers.getlist("idempotency-key")
    if len(given) < len(pairs) or "requires" in given or len(keys) > 1 or not all(map(_KEY.fullmatch, keys)):
        return None
    try:
        _type.validate_python(request.scope["path"].removeprefix(_ADDRESS))
        return run.RunQuery.model_validate(given)
    except ValidationError:
        return None
