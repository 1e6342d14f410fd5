"""A request over the queue: enqueue a job and wait for its result; wait for it again."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.admin.access import is_file
from supervisor.admin.answers import ANSWERED, Refused, answer, changing, reading, refusal_of
from supervisor.admin.api import models
from supervisor.admin.requests import NotFinished, plain
from supervisor.admin.state import AppState, TheState, may_change
from supervisor.client.waiting import ResultUnknown
from supervisor.domain.enqueueing import OPTIONS, new_request, payload_of
from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import Status

router = APIRouter(tags=["jobs"])

LONGEST_WAIT = 300.0  # seconds
_KEY = re.compile(models.IDEMPOTENCY_KEY)
_type = TypeAdapter(models.JobType)


class WaitQuery(models.Request):
    """How long a result is waited for."""

    model_config = ConfigDict(extra="forbid", strict=False)

    wait: float = Field(
        default=30.0, ge=0, le=LONGEST_WAIT, description="The seconds to wait, at most 300; default: 30."
    )


WAITED = [name for name, option in OPTIONS.items() if option.waited]


@models.with_options(WAITED, requires=models.Capabilities)
class RunQuery(WaitQuery):
    """How a job is enqueued whose result is waited for."""

    cancel: bool = Field(
        default=False,
        description="Cancel the job if the client goes away before the answer. Not with an Idempotency-Key: a client "
        "that was cut off asks for the result again.",
    )
    fields: str | None = Field(
        default=None,
        description="For a body that is a file: a JSON object with further fields of the payload.",
    )


IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=models.IDEMPOTENCY_KEY,
        description="Requests of a type with the same key are answered with the same job, which is run once, as long "
        "as that is kept. 1 to 200 printable characters without spaces.",
    ),
]


class RunAnswer(BaseModel):
    """The job has succeeded."""

    id: int
    result: Any = Field(description="JSON: what the handler has returned.")


class RunLater(BaseModel):
    """The job has not finished yet."""

    id: int
    status: Status | None = Field(
        default=None, description="Its state at this moment; left out if the database could not tell."
    )
    attempts: int | None = Field(default=None, description="The number of its attempts, if there were any.")
    last_error: str | None = Field(default=None, description="The error of the last attempt that has failed, if any.")


_BODY: dict[str, Any] = {  # FastAPI would read a body that it knows of into memory
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {
                    "title": "Payload",
                    "description": "The payload: any JSON of at most 1 MiB and 64 levels; default `{}`.",
                }
            },
            "application/octet-stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "title": "File",
                    "description": "A file, with its own media type, such as `image/jpeg`; not those that forms have. "
                    'The payload is `{"path": …, "media_type": …}`, and what `fields` adds.',
                }
            },
        }
    }
}


@router.post(
    "/run/{type:path}",
    response_model=RunAnswer,
    responses={
        202: {"model": RunLater, "description": "The time is up; the job continues."},
        **changing(404, 409, 429, 500, 507),
    },
    openapi_extra=_BODY,
)
async def run(
    state: TheState,
    request: Request,
    type: Annotated[models.JobType, Path()],
    query: Annotated[RunQuery, Query()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Enqueue a job and answer with its result. The body is the payload, or a file, which the payload names."""
    job = new_request(
        type,
        idempotency_key=idempotency_key,
        cancel=query.cancel,
        **{name: getattr(query, name) for name in WAITED},
    )
    requests = state.requests
    await requests.require(job)  # before the body is read: a file would be uploaded in vain
    try:
        if not is_file(request.method, request.url.path, request.headers):
            if query.fields is not None:
                raise InvalidJob("fields", "it is for a body that is a file; put them into the payload")
            job_id, new = await requests.enqueue(job._replace(payload=payload_of(await _json(request))))
        elif state.uploads is None:
            reason = "the body must be JSON: without a folder for them, files are not taken"
            raise Refused(415, reason, "name a folder that all hosts share: folder in [spool]")
        else:
            job_id, new = await state.uploads.insert(request, job, query.fields, requests.enqueue)
        found = await requests.result_of_enqueued(job_id, new, query.wait, request, cancel=query.cancel)
    except NotFinished as unfinished:
        return _later(type, job_id, unfinished)
    except ResultUnknown as error:
        hint = (
            "the job is in the table: the same request again would make another one, unless it has an Idempotency-Key"
        )
        raise Refused(503, str(error), hint, headers=_location(type, error.job_id), job=error.job_id) from None
    return answer({"id": job_id, "result": found}, headers=_location(type, job_id))


async def _json(request: Request) -> Any:
    """The value of the body; None without one."""
    body = await request.body()
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None


@router.get(
    "/run/{type:path}/{job_id}",
    response_model=RunAnswer,
    responses={
        202: {"model": RunLater, "description": "The time is up; the job continues."},
        **reading(403, 404, 409, 422, 500),
    },
)
async def result(
    state: TheState,
    request: Request,
    type: Annotated[models.JobType, Path()],
    job_id: models.JobId,
    query: Annotated[WaitQuery, Query()],
) -> Response:
    """The result of a job of that type, as `POST /run` answers with it. It needs the full token."""
    if not may_change(request):
        raise Refused(403, "this token does not show results: the full token is needed, as for the request itself")
    await state.requests.require_type(job_id, type)
    try:
        return answer({"id": job_id, "result": await state.requests.result(job_id, query.wait, request)})
    except NotFinished as error:
        return _later(type, job_id, error)


def _later(type: str, job_id: int, error: NotFinished) -> Response:
    content: dict[str, Any] = {"id": job_id}
    if (job := error.job) is not None:
        content["status"] = job.status
        content |= {"attempts": job.attempts} if job.attempts else {}
        content |= {"last_error": plain(job.last_error)} if job.last_error else {}
    return answer(content, 202, _location(type, job_id))


def _location(type: str, job_id: int) -> dict[str, str]:
    """Where the same client gets the result."""
    return {"Location": f"/run/{quote(type, safe='')}/{job_id}"}


def direct(app: ASGIApp, state: AppState) -> ASGIApp:
    """`POST /run` past the framework's routing, which takes longer than everything else that this process does for it.
    Requests with invalid parameters take the usual way, which says what is wrong with them.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        request, type_ = Request(scope, receive, send), scope["path"].removeprefix("/run/")
        is_run = scope["method"] == "POST" and type_ != scope["path"]
        if not (is_run and (valid := _valid(request, type_))):
            await app(scope, receive, send)
            return
        try:
            response = await run(state, request, type_, *valid)
        except ANSWERED as error:
            response = refusal_of(request, error).response()
        await response(scope, receive, send)

    return serve


def _valid(request: Request, type_: str) -> tuple[RunQuery, str | None] | None:
    """The parameters of the request, and its idempotency key; None if they are not simply valid."""
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given, keys = dict(pairs), request.headers.getlist("idempotency-key")
    if len(given) < len(pairs) or "requires" in given or len(keys) > 1 or not all(map(_KEY.fullmatch, keys)):
        return None
    try:
        _type.validate_python(type_)
        return RunQuery.model_validate(given), keys[0] if keys else None
    except ValidationError:
        return None
