"""Answers: values as JSON; errors, always in the same shape, with one sentence that the user can act on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from supervisor.domain.errors import (
    BatchNotFound,
    ConfigError,
    EnqueueUncertain,
    InvalidJob,
    JobNotFound,
    QueueError,
    QueueFull,
    StoreError,
    StoreGone,
    StoreUnavailable,
)
from supervisor.domain.text import json_safe
from supervisor.ops.serving import NotServed
from supervisor.ops.supervisors import Unknown
from supervisor.system.spool import FileTooLarge, SpoolFull

AGAIN = {"Retry-After": "2"}
"""The header of an answer after which another try may succeed, in seconds."""

_PIECE = 16 << 10  # bytes

_CODES: dict[type, int] = {  # the nearest class of an error counts
    QueueError: 409,
    **dict.fromkeys((Unknown, JobNotFound, BatchNotFound), 404),
    FileTooLarge: 413,
    **dict.fromkeys((InvalidJob, ConfigError), 422),
    QueueFull: 429,
    ClientDisconnect: 499,  # nobody reads it
    **dict.fromkeys((NotServed, StoreError), 503),
    SpoolFull: 507,
}
ANSWERED = (RequestValidationError, HTTPException, ClientDisconnect, QueueError, FileTooLarge, SpoolFull)
_PASSING = (StoreUnavailable, QueueFull, NotServed)
_NOT_AGAIN = (EnqueueUncertain, StoreGone)  # it could store a job twice; only a restart helps


class Refused(HTTPException):
    """A request is refused: raised anywhere in this process. `more` are further fields of `Problem`; None: without."""

    def __init__(
        self,
        code: int,
        error: str,
        hint: str | None = None,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(code, error, headers)
        content = {"error": error, "hint": hint or None} | more
        self.content = {name: value for name, value in content.items() if value is not None}

    def response(self) -> JSONResponse:
        return answer(self.content, self.status_code, self.headers)


class Problem(BaseModel):
    """Why a request was refused. Nothing was changed unless the error says so."""

    error: str = Field(description="One sentence for people.")
    hint: str | None = Field(default=None, description="What to do about it.")
    field: str | None = Field(default=None, description="The invalid field of the request.")
    job: int | None = Field(
        default=None, description="The id of the job that has ended without a result, or whose result is not known."
    )
    status: str | None = Field(default=None, description="The state in which that job has ended.")
    kind: str | None = Field(
        default=None,
        description="Why: the kind of its last error, such as `permanent`, `timeout` or `crash`; or `cancelled`.",
    )
    duplicate_of: int | None = Field(default=None, description="The job that has the same unique key.")
    matching: int | None = Field(default=None, description="For a change of many jobs: how many match now.")
    snapshot: str | None = Field(
        default=None, description="For a change of many jobs: the snapshot of those that match now."
    )


_MEANINGS = {
    400: "The body is not valid JSON.",
    401: "No token, or a wrong one, which is answered after half a second.",
    403: "The token is read-only, `X-Requested-With: supervisor` is missing, another site sent the request, or it "
    "asks for payloads or results, which are hidden from it.",
    404: "Nothing has this name or id; for `POST /run`, no pool takes the type.",
    409: "The state, or the number of matching jobs, does not allow it; for `/run`, the job was cancelled.",
    413: "The body is over 2 MiB, or a file over `max_file` of `[spool]`.",
    415: "The body must be `application/json`, or for `POST /run` a file.",
    421: "The server does not answer to this host name: add it to `hosts` of `[admin]`.",
    422: "A field or parameter is not valid; for `/run`, or the handler has refused the payload for good.",
    429: "`max_waiting` jobs of the type with at least this priority are waiting already. With `Retry-After`.",
    500: "The job has ended without a result: it has failed, or is quarantined.",
    503: "The database or the spool cannot be used, there are too many requests, or, for `POST /run`, no pool can run "
    "the job. With `Retry-After` if another try may succeed.",
    507: "The spool, or its disk, has no room for the file.",
}
_OF_READING = (401, 421, 422, 503)
_OF_CHANGING = (400, 401, 403, 413, 415, 421, 422, 503)


def reading(*codes: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the problems of a route that only reads, and these."""
    return _documents(*_OF_READING, *codes)


def changing(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route that changes something."""
    return _documents(*_OF_CHANGING, *codes)


def _documents(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": _MEANINGS[code]} for code in sorted(set(codes))}


def streaming(*events: str, **more: Any) -> dict[str, Any]:
    """For OpenAPI: an answer of server-sent events."""
    data = {"type": "string", "contentMediaType": "application/json"}
    properties = {**more, "event": {"enum": events}, "data": data}
    schema = {"type": "object", "properties": properties, "required": ["event", "data"]}
    return {"content": {"text/event-stream": {"schema": schema}}}


async def no_other_parameters(request: Request) -> None:
    """For routes: those that take no query parameters refuse any. The models of the others do that themselves.

    A coroutine: FastAPI would call a function on a thread, for every request.
    """
    if not request.scope["route"].dependant.query_params:
        for name in request.query_params:
            raise Refused(422, f"{name}: unknown field", field=name)


class _Pieces(Response):
    """A body that many share: of what a slow client has not read, no more than a piece is copied for it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for begin in range(0, len(self.body), _PIECE):
            end = begin + _PIECE
            more = end < len(self.body)
            await send({"type": "http.response.body", "body": self.body[begin:end], "more_body": more})
            await asyncio.sleep(0)  # it is written now; the next `send` waits until the client has taken enough


async def openapi(request: Request) -> Response:
    """The OpenAPI document, which is written once."""
    kept = request.app.state
    if not hasattr(kept, "openapi"):
        kept.openapi = JSONResponse(request.app.openapi()).body
    return _Pieces(kept.openapi, media_type="application/json")


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A value as JSON that every parser accepts."""
    return JSONResponse(json_safe(value), status, headers)


def refusal_of(request: Request, error: Exception) -> Refused:
    """How a request that has ended with this error is answered. What nobody has foreseen is an internal error."""
    match error:
        case Refused():
            return error
        case RequestValidationError():
            return _of_parameters(error)
        case HTTPException():
            return _of_framework(request, error)
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), 0)
    if not code:
        return Refused(500, "internal error of the admin process", "see its log")
    passing = isinstance(error, _PASSING) and not isinstance(error, _NOT_AGAIN)
    more = {name: getattr(error, name, None) for name in ("field", "duplicate_of")}
    sentence = error.problems[0] if isinstance(error, ConfigError) else str(error)
    if isinstance(error, ConfigError) and (named := re.match(r"([a-z_.]+): ", sentence)):
        more["field"] = named[1]
    return Refused(code, sentence, getattr(error, "hint", ""), headers=AGAIN if passing else None, **more)


def _of_framework(request: Request, error: HTTPException) -> Refused:
    """Unknown addresses and methods, bodies that are not JSON."""
    path, code, headers = request.url.path, error.status_code, error.headers
    sentences = {
        400: "the body is not valid JSON",
        404: f"there is nothing at {path}",
        405: f"{request.method} is not allowed for {path}",
    }
    if code == 405:  # the framework names those of the first route alone
        paths = request.app.openapi()["paths"]
        fitting = [one for one in paths if re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), path)]
        known = [path] if path in paths else fitting
        methods = sorted({method.upper() for one in known for method in paths[one]})
        headers = {"Allow": ", ".join(methods)} if methods else headers
    return Refused(code, sentences.get(code, HTTPStatus(code).phrase), headers=headers)


_SENTENCES = {
    "extra_forbidden": "unknown field",
    **dict.fromkeys(("model_attributes_type", "model_type", "dict_type"), "must be a JSON object"),
}


def _of_parameters(error: RequestValidationError) -> Refused:
    """In the words of pydantic."""
    first, *others = error.errors()
    if first["type"] == "json_invalid":
        return Refused(400, "the body is not valid JSON")
    name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    message = str(first["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    message = _SENTENCES.get(first["type"], message)
    more = f" (and {len(others)} more)" if others else ""
    return Refused(422, f"{name}: {message[:1].lower()}{message[1:]}{more}", field=name)
