"""A request over the queue: enqueue a job and wait for its result; wait for it again."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from supervisor.admin.api import bodies, models
from supervisor.admin.api.documents import answer
from supervisor.admin.api.problems import Hidden, changing, each_once, problem, reading
from supervisor.admin.requests import ClientGone, NotFinished, plain
from supervisor.admin.state import TheState, may_change
from supervisor.client.queue import ResultUnknown
from supervisor.domain.intake import new_request
from supervisor.domain.job import Status

router = APIRouter(tags=["jobs"])

LONGEST_WAIT = 300.0  # seconds


class WaitQuery(models.Request):
    """How long a result is waited for."""

    model_config = ConfigDict(extra="forbid", strict=False)

    wait: float = Field(
        default=30.0, ge=0, le=LONGEST_WAIT, description="The seconds after which the answer is 202, at most."
    )


class RunQuery(WaitQuery):
    """How a job is enqueued whose result is waited for."""

    cancel: bool = Field(
        default=False,
        description="Cancel the job if the client goes away before the answer. Not with an Idempotency-Key: a client "
        "that was cut off asks for the result again.",
    )
    priority: models.Priority = Field(default=0, description="Higher ones run first.")
    requires: list[models.Capability] = Field(
        default_factory=list, max_length=100, description="Capabilities that the worker must have; may be repeated."
    )
    max_attempts: models.Attempts | None = Field(default=None, description="Default: the pool's policy.")
    fields: str | None = Field(
        default=None,
        description="For a body that is a file: a JSON object with further fields of the payload.",
    )


IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=models.IDEMPOTENCY_KEY,
        description="Requests of a type with the same key are answered with the same job, which is run once, as long "
        "as that is kept.",
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


@router.post(
    "/run/{type:path}",
    response_model=RunAnswer,
    responses={
        202: {"model": RunLater, "description": "The time is up; the job continues."},
        **changing(404, 409, 429, 500, 507),
    },
    dependencies=[each_once("requires")],
    openapi_extra=bodies.DOCUMENT,
)
async def run(
    state: TheState,
    request: Request,
    type: Annotated[models.JobType, Path()],
    query: Annotated[RunQuery, Query()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Enqueue a job and answer with its result. The body is the payload, or a file, which the payload names."""
    try:
        job = new_request(
            type,
            idempotency_key=idempotency_key,
            cancel=query.cancel,
            priority=query.priority,
            requires=query.requires,
            max_attempts=query.max_attempts,
        )
        # Before the body is read: a file would be uploaded in vain.
        await state.requests.availability.require(type, job.unique_key)
        job, file = await bodies.requested(request, state.uploads, job, query.fields)
        job_id, result = await state.requests.run(job, query.wait, _gone(request), cancel=query.cancel, file=file)
    except NotFinished as error:
        return _later(type, error)
    except ResultUnknown as error:
        hint = (
            "the job is in the table: the same request again would make another one, unless it has an Idempotency-Key"
        )
        return problem(503, str(error), headers=_location(type, error.job_id), hint=hint, job=error.job_id)
    except (ClientGone, ClientDisconnect):
        return Response()  # nobody reads it
    return answer({"id": job_id, "result": result}, headers=_location(type, job_id))


@router.get(
    "/run/{type:path}/{job_id}",
    response_model=RunAnswer,
    responses={
        202: {"model": RunLater, "description": "The time is up; the job continues."},
        **reading(403, 404, 409, 422, 500),
    },
    dependencies=[each_once()],
)
async def result(
    state: TheState,
    request: Request,
    type: Annotated[models.JobType, Path()],
    job_id: Annotated[int, Path(ge=1, le=models.LARGEST_ID, description="The job's id.")],
    query: Annotated[WaitQuery, Query()],
) -> Response:
    """The result of a job of that type, as `POST /run` answers with it. It needs the full token."""
    if not may_change(request):
        raise Hidden("this token does not show results: the full token is needed, as for the request itself")
    try:
        found = await state.requests.wait(type, job_id, query.wait, _gone(request))
    except NotFinished as error:
        return _later(type, error)
    except ClientGone:
        return Response()  # nobody reads it
    return answer({"id": job_id, "result": found})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _later(type: str, error: NotFinished) -> Response:
    told: dict[str, Any] = {"id": error.job_id}
    if (job := error.job) is not None:
        told["status"] = job.status
        told |= {"attempts": job.attempts} if job.attempts else {}
        told |= {"last_error": plain(job.last_error)} if job.last_error else {}
    return answer(told, 202, _location(type, error.job_id))


def _location(type: str, job_id: int) -> dict[str, str]:
    """Where the same client gets the result."""
    return {"Location": f"/run/{quote(type, safe='')}/{job_id}"}
