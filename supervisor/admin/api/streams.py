"""Server-sent events: the overview whenever it changes; one job, with what it emits while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from supervisor.admin.api import models
from supervisor.admin.api.answers import reading
from supervisor.admin.state import TheState, may_change
from supervisor.admin.watch import COMMENT, HEARTBEAT, EventStream, TooManyListeners
from supervisor.client.job_streams import JobListener
from supervisor.domain.job_stream import data_of, position_of

FOLLOWERS = 400  # of jobs, at most: other requests need some of the connections, too
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
    if state.streams.listeners >= FOLLOWERS:
        raise TooManyListeners(f"{FOLLOWERS} clients already follow jobs, which is the maximum")
    listener = await state.streams.join(job_id, position_of(last_event_id))
    return EventStream(_events(listener, show=state.settings.show_payloads or may_change(request)), listener.leave)


async def _events(listener: JobListener, *, show: bool) -> AsyncIterator[bytes]:
    """Until the job has ended. `show`: with its chunks and its result."""
    follower, bell = listener.follower, listener.bell
    bell.set()
    while not (follower.ended or listener.streams.leaving):
        try:
            await asyncio.wait_for(bell.wait(), HEARTBEAT)
        except TimeoutError:
            yield COMMENT
            continue
        bell.clear()
        message = b"".join(
            f"id: {event.at}\nevent: {event.name}\ndata: {data_of(event, show=show)}\n\n".encode()
            for event in listener.news()
        )
        if message:
            yield message
