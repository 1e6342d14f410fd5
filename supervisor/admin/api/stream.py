"""The state as server-sent events, for pages and programs that follow changes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from supervisor.admin.api.problems import reading
from supervisor.admin.state import TheState
from supervisor.admin.watch import Listener, Watch

router = APIRouter(prefix="/api/admin", tags=["state"])

JSON = "application/json"
_EVENTS = (
    "`event: overview` with the overview as JSON, immediately and whenever more than the time has changed, at most "
    "once a second; `event: trouble` with an error while the database cannot be used; comments as heartbeats."
)


_EVENT = {
    "type": "object",
    "properties": {"event": {"enum": ["overview", "trouble"]}, "data": {"type": "string", "contentMediaType": JSON}},
    "required": ["event", "data"],
}


class EventStream(StreamingResponse):
    """Runs until the client disconnects, then removes its listener."""

    media_type = "text/event-stream"

    def __init__(self, watch: Watch, listener: Listener) -> None:
        super().__init__(listener.events(), headers={"X-Accel-Buffering": "no"})
        self._watch = watch
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watch.leave(self._listener)


@router.get(
    "/events",
    response_class=Response,
    response_description=_EVENTS,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT}}}, **reading()},
)
async def events(state: TheState) -> Response:
    """The overview whenever it has changed. At most 50 clients may listen."""
    return EventStream(state.watch, state.watch.join())
