"""Errors as answers: always the same shape, with one sentence that the user can act on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from supervisor.admin.api import models
from supervisor.admin.requests import NoResult
from supervisor.admin.uploads import NoSpool
from supervisor.admin.watch import TooManyListeners
from supervisor.config import checks
from supervisor.config.checks import shown
from supervisor.domain.errors import (
    ConfigError,
    Conflict,
    EnqueueUncertain,
    InvalidJob,
    JobNotFound,
    QueueError,
    QueueFull,
    StoreError,
    StoreGone,
    StoreUnavailable,
)
from supervisor.domain.job import Status
from supervisor.domain.text import json_safe, like
from supervisor.ops.commands import UnknownPool, UnknownSchedule, UnknownType
from supervisor.ops.serving import NotServed
from supervisor.ops.supervisors import UnknownHost
from supervisor.system.spool import FileTooLarge, SpoolFull

RETRY_AFTER = 2  # seconds after which a retry may succeed


class Hidden(QueueError):
    """The request asks about payloads or results, which are not shown to it."""


# The first match counts.
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (Hidden, 403),
    (FileTooLarge, 413),
    (SpoolFull, 507),
    (NoSpool, 415),
    (InvalidJob, 422),
    (UnknownPool, 404),
    (UnknownType, 404),
    (UnknownSchedule, 404),
    (UnknownHost, 404),
    (ConfigError, 422),
    (JobNotFound, 404),
    (QueueFull, 429),
    (Conflict, 409),
    (NotServed, 503),
    (StoreError, 503),
    (TooManyListeners, 503),
    (QueueError, 409),
)
TOLD = (RequestValidationError, HTTPException, QueueError, TooManyListeners, FileTooLarge, SpoolFull)
_REFUSED = ("permanent", "payload")  # kinds of errors with which a handler says that the request cannot succeed
_PASSING = (StoreUnavailable, TooManyListeners, QueueFull, NotServed)  # another try may succeed
_NOT_AGAIN = (EnqueueUncertain, StoreGone)  # it could store a job twice; only a restart helps


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
    duplicate_of: int | None = Field(
        default=None, description="For a retry: the unfinished job that has the same unique key."
    )
    matching: int | None = Field(default=None, description="For a change of many jobs: how many match now.")
    snapshot: str | None = Field(
        default=None, description="For a change of many jobs: the snapshot of those that match now."
    )


_MEANINGS = {
    400: "The body is not valid JSON.",
    401: "No token, or a wrong one.",
    403: "The token is read-only, `X-Requested-With: supervisor` is missing, another site sent the request, or it "
    "asks for payloads or results, which are hidden from it.",
    404: "Not found.",
    409: "The current state does not allow it; for `/run`, the job was cancelled.",
    413: "The body is too large.",
    415: "The body must be `application/json`, or for `POST /run` a file.",
    421: "The server does not answer to this host name; see `hosts` of `[admin]`.",
    422: "The request is invalid; for `/run`, or its handler has refused the payload for good.",
    429: "`max_waiting` jobs of the type with at least this priority are waiting already.",
    500: "The job has ended without a result: it has failed, or is quarantined.",
    503: "The database cannot be used at the moment, or there are too many requests; for `POST /run`, no pool can run "
    "jobs of the type.",
    507: "The spool has no room for the file.",
}
_SENTENCES = {"extra_forbidden": "unknown field", "missing": "it is required"}
_KEY = "idempotency-key"
_WORD = "must be 1 to {} printable ASCII characters without spaces"
_PATTERNS = {models.IDEMPOTENCY_KEY: _WORD.format(200), models.CAPABILITY: _WORD.format(100)}
_OBJECT = 'must be an object, like {{"name": …}}'
_KINDS = {
    "string_type": checks.MUST_BE_TEXT,
    "int_type": checks.MUST_BE_WHOLE,
    "int_parsing": checks.MUST_BE_WHOLE,
    "float_type": checks.MUST_BE_NUMBER,
    "float_parsing": checks.MUST_BE_NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": checks.MUST_BE_BOOLEAN,
    "bool_parsing": checks.MUST_BE_BOOLEAN,
    "list_type": checks.MUST_BE_LIST,
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "literal_error": checks.MUST_BE_ONE_OF,
    "enum": checks.MUST_BE_ONE_OF,
    "greater_than_equal": checks.MUST_BE_AT_LEAST,
    "less_than_equal": checks.MUST_BE_AT_MOST,
    "greater_than": "must be greater than {}",
}
"""Our texts for pydantic's error types, with its limit put in; the value found is appended."""
_OF_READING = (401, 421, 503)
_OF_CHANGING = (400, 401, 403, 413, 415, 421, 422, 503)


def reading(*codes: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the problems of a route that only reads, and these."""
    return _documents(*_OF_READING, *codes)


def changing(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route that changes something."""
    return _documents(*_OF_CHANGING, *codes)


def _documents(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": _MEANINGS[code]} for code in sorted(set(codes))}


def problem(status: int, error: str, /, *, headers: Mapping[str, str] | None = None, **more: Any) -> JSONResponse:
    """The answer to a request that is refused."""
    content = {"error": error} | {name: value for name, value in more.items() if value is not None}
    return JSONResponse(json_safe(content), status, headers=dict(headers or {}))


def each_once(*repeatable: str) -> Any:
    """A dependency that refuses repeated query parameters, except `repeatable` ones, and a repeated idempotency key: it
    is unclear which one counts.
    """

    async def check(request: Request) -> None:  # asynchronous, or the framework would call it in a thread
        given = [("query", name) for name, _ in request.query_params.multi_items() if name not in repeatable]
        given += [("header", _KEY)] * len(request.headers.getlist(_KEY))
        for place, times in Counter(given).items():
            if times > 1:
                raise RequestValidationError([{"type": "repeated", "loc": place, "msg": f"it is given {times} times"}])

    return Depends(check)


def tell_problems(app: FastAPI) -> None:
    for kind in TOLD:
        app.add_exception_handler(kind, told)


async def told(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that has ended with one of the errors in `TOLD`."""
    if isinstance(error, RequestValidationError):
        return _of_request(request, error)
    return of_http(request, error) if isinstance(error, HTTPException) else _of_queue(error)


def _of_queue(error: Exception) -> JSONResponse:
    if isinstance(error, NoResult):
        job = error.job
        return problem(_code_of_end(job.status, error.kind), str(error), job=job.id, status=job.status, kind=error.kind)
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    passing = isinstance(error, _PASSING) and not isinstance(error, _NOT_AGAIN)
    headers = {"Retry-After": str(RETRY_AFTER)} if passing else {}
    sentence = error.problems[0] if isinstance(error, ConfigError) else str(error)
    told = {name: getattr(error, name, None) for name in ("field", "hint", "duplicate_of")}
    return problem(code, sentence, headers=headers, **told)


def _code_of_end(status: Status, kind: str) -> int:
    """Of a job without a result: whether the client, somebody else, or the service is the cause."""
    if status is Status.CANCELLED:
        return 409
    return 422 if status is Status.FAILED and kind in _REFUSED else 500


def of_http(request: Request, error: HTTPException) -> JSONResponse:
    """Requests refused by the framework: unknown addresses and methods, bodies that are not JSON."""
    sentences = {
        400: "the body is not valid JSON",
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not allowed for {request.url.path}",
    }
    standard = HTTPStatus(error.status_code).phrase
    own = error.detail not in (standard, "There was an error parsing the body")
    sentence = error.detail if own else sentences.get(error.status_code, standard)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request))) or headers.get("Allow", "")
    return problem(error.status_code, sentence, headers=headers)


def _methods(request: Request) -> set[str]:
    """The methods allowed at this address: each of its routes knows only its own."""
    path, paths = request.url.path, request.app.openapi()["paths"]
    known = [path] if path in paths else paths

    def fitting(type_: str) -> list[str]:
        """`type_` matches the name of a type."""
        patterns = {one: re.sub(r"\{\w+\}", "[^/]+", one.replace("{type}", type_)) for one in known}
        return [one for one, pattern in patterns.items() if re.fullmatch(pattern, path)]

    templates = fitting("[^/]+") or fitting(".+")  # such a name may have slashes
    return {method.upper() for template in templates for method in paths[template]}


def _of_request(request: Request, error: RequestValidationError) -> JSONResponse:
    first, *others = error.errors()
    if first["type"] == "json_invalid":
        return problem(400, "the body is not valid JSON", hint=first.get("ctx", {}).get("error"))
    place = [str(part) for part in first["loc"][1:]]
    name = ".".join(place) or str(first["loc"][0])
    if first["type"] == "extra_forbidden" and first["loc"][0] == "query":
        message = f"unknown parameter{like(name, _parameters(request))}"
    else:
        message = _SENTENCES.get(first["type"]) or _in_words(first)
    more = f" (and {len(others)} more)" if others else ""
    return problem(422, f"{name}: {message[:1].lower()}{message[1:]}{more}", field=name)


def _parameters(request: Request) -> list[str]:
    """Those that the address of the request may have in its query."""
    operations = request.app.openapi()["paths"].get(getattr(request.scope.get("route"), "path_format", ""), {})
    known = operations.get(request.method.lower(), {}).get("parameters", ())
    return [one["name"] for one in known if one["in"] == "query"]


def _in_words(error: Any) -> str:
    """One of pydantic's errors as the end of a sentence that starts with the field."""
    limits = error.get("ctx", {})
    rule = _PATTERNS.get(limits.get("pattern")) or _KINDS.get(error["type"])
    if rule is None:
        text = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
        return text[:1].lower() + text[1:]
    return f"{rule.format(*map(_whole, limits.values()))}, not {shown(error['input'])}"


def _whole(limit: Any) -> Any:
    """For readers, 300.0 is 300."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit
