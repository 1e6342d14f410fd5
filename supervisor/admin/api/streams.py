"""Server-sent events: the overview whenever it changes; one job, with what it emits while it runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from supervisor.admin.api import models
from supervisor.admin.api.answers import reading
from supervisor.admin.state import TheState, may_change
from supervisor.admin.watch import EventStream
from supervisor.domain.job_stream import position_of

_OVERVIEW = (
    "`event: overview` with the overview as JSON, immediately and whenever more than the time has changed, at most "
    "once a second; `event: trouble` with an error while the database cannot be used; comments as heartbeats."
)
_JOB = (
    "`event: job` with the state and the progress, at once and with each change; `event: attempt` when a run begins; "
    "`event: chunk` for what it emits; `event: lost` with the number of chunks that are missing before the next one; "
    "`event: trouble` with an error while the database cannot be used; `event: end` with the final state, and the "
    "answer ends. Comments as heartbeats."
)

router = APIRouter()


def _documented(*events: str, **more: Any) -> dict[str, Any]:
    """The content of an answer for OpenAPI."""
    data = {"type": "string", "contentMediaType": "application/json"}
    properties = {**more, "event": {"enum": events}, "data": data}
    schema = {"type": "object", "properties": properties, "required": ["event", "data"]}
    return {"content": {"text/event-stream": {"schema": schema}}}


@router.get(
    "/api/admin/events",
    tags=["state"],
    response_class=Response,
    response_description=_OVERVIEW,
    responses={200: _documented("overview", "trouble"), **reading()},
)
async def overview_events(state: TheState) -> Response:
    """The overview whenever it has changed. At most 50 clients may listen."""
    return state.watch.listen()


LastEventId = Annotated[
    str,
    Header(
        alias="Last-Event-ID",
        pattern=r"^(\d{1,18}\.\d{1,18})?$",
        description="The `id` of the last event that was received: the stream goes on behind it.",
    ),
]
_ID = {"type": "string", "description": "For the header `Last-Event-ID`."}


@router.get(
    "/jobs/{job_id}/events",
    tags=["jobs"],
    response_class=Response,
    response_description=_JOB,
    responses={
        200: _documented("job", "attempt", "chunk", "lost", "trouble", "end", id=_ID),
        **reading(404, 422),
    },
)
async def job_events(
    state: TheState, request: Request, job_id: models.JobId, last_event_id: LastEventId = ""
) -> Response:
    """What becomes of a job, and what it emits, from the start of its run.

    Chunks and the result are for the full token, which could have made the job. For the read token, they are null and
    `redacted` is true, unless `show_payloads` is set.
    """
    stream = await state.streams.join(job_id, position_of(last_event_id))
    show = state.settings.show_payloads or may_change(request)
    return EventStream(state.streams.events(stream, show=show), lambda: state.streams.leave(stream))
