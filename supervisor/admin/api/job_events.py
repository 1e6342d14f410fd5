"""One job as server-sent events: what becomes of it, and what it emits while it runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from supervisor.admin.api import models
from supervisor.admin.api.problems import reading
from supervisor.admin.job_streams import JobListener
from supervisor.admin.state import TheState, may_change
from supervisor.domain.job_stream import position_of

router = APIRouter(tags=["jobs"])

_EVENTS = (
    "`event: job` with the state and the progress, at once and with each change; `event: attempt` when a run begins; "
    "`event: chunk` for what it emits; `event: lost` with the number of chunks that are missing before the next one; "
    "`event: trouble` with an error while the database cannot be used; `event: end` with the final state, and the "
    "answer ends. Comments as heartbeats."
)
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "For the header `Last-Event-ID`."},
        "event": {"enum": ["job", "attempt", "chunk", "lost", "trouble", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}

LastEventId = Annotated[
    str,
    Header(
        alias="Last-Event-ID",
        pattern=r"^(\d{1,18}\.\d{1,18})?$",
        description="The `id` of the last event that was received: the stream goes on behind it.",
    ),
]


class JobEventStream(StreamingResponse):
    """Runs until the job has ended or the client disconnects, then removes its listener."""

    media_type = "text/event-stream"

    def __init__(self, listener: JobListener) -> None:
        super().__init__(listener.events(), headers={"X-Accel-Buffering": "no"})
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listener.leave()


@router.get(
    "/jobs/{job_id}/events",
    response_class=Response,
    response_description=_EVENTS,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT}}}, **reading(404, 422)},
)
async def events(
    state: TheState,
    request: Request,
    job_id: Annotated[int, Path(ge=1, le=models.LARGEST_ID, description="The job's id.")],
    last_event_id: LastEventId = "",
) -> Response:
    """What becomes of a job, and what it emits, from the start of its run.

    Chunks and the result are for the full token, which could have made the job. For the read token, they are null and
    `redacted` is true, unless `show_payloads` is set.
    """
    show = state.settings.show_payloads or may_change(request)
    return JobEventStream(await state.streams.join(job_id, position_of(last_event_id), show=show))
