"""The admin process from its fork to its end, and its application: the routes and what they share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import resource
import signal
import socket
from collections.abc import Mapping

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.staticfiles import StaticFiles

import supervisor
from supervisor.admin import login, metrics
from supervisor.admin.access import AccessMiddleware
from supervisor.admin.answers import ANSWERED, no_other_parameters, openapi
from supervisor.admin.api import batches, controls, jobs, overview, run
from supervisor.admin.api.run import direct
from supervisor.admin.keys import keys_of
from supervisor.admin.pages import jobs as job_pages
from supervisor.admin.pages import state as state_pages
from supervisor.admin.rendering import STATIC, error_of
from supervisor.admin.requests import Requests, wake_for
from supervisor.admin.server import Server
from supervisor.admin.state import AppState
from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.streams import JobStreams, OverviewWatch
from supervisor.admin.uploads import Uploads
from supervisor.client.queue import Queue
from supervisor.config.settings import Settings
from supervisor.domain.text import without_password
from supervisor.ops.admin_files import upload_folder
from supervisor.store.base import Engine, JobSelector
from supervisor.system import settled_notice, signals
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import ADMIN_SLOT, Scoreboard
from supervisor.system.spool import Spool

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TITLE = "job-supervisor"
DESCRIPTION = """Jobs, workers, pools and numbers of one database.

Every request except `GET /healthz` needs the admin token as `Authorization: Bearer …`, or, for reading, the read token;
on a Unix socket the file's permissions decide instead. A request that changes something must send `Content-Type:
application/json` if it has a body, or that of a file for `POST /run`, and, without the header `Authorization`,
`X-Requested-With: supervisor`.
Times are Unix seconds, durations seconds, sizes bytes. Errors are `{"error": "one sentence", "hint": "…"}`.
"""

# Documents the token, which the access middleware has already checked.
_TOKEN = Depends(HTTPBearer(auto_error=False, scheme_name="token", description="The admin token, or the read token."))


def make_app(state: AppState) -> FastAPI:
    """The application without the access middleware; `become` puts that in front."""
    app = FastAPI(
        title=TITLE,
        version=supervisor.__version__,
        description=DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.state = state
    for kind in (*ANSWERED, Exception):
        app.add_exception_handler(kind, error_of)
    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.include_router(login.router)
    parts = (jobs.router, jobs.events, run.router, batches.router, overview.router, controls.router, controls.schedules)
    for router in parts:
        app.include_router(router, dependencies=[_TOKEN, Depends(no_other_parameters)])
    for router in (overview.open_router, metrics.routes(), state_pages.router, job_pages.router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def become(
    settings: Settings,
    engine: Engine,
    board: Scoreboard,
    channel: Channel,
    listening: socket.socket,
    wakes: Mapping[str, int],
    supervisor: str,
) -> int:
    """Serve until the `supervisor`, given by its id, ends or requests it. Returns the exit code.

    `wakes` maps a pool to the eventfd on which its idle workers sleep.
    """
    signals.Inbox(obeyed=(), ignored=IGNORED)
    signals.unblock_all()
    with contextlib.suppress(OSError, ValueError):  # the usual 1024 are too few: a file that arrives takes three
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert settings.admin is not None
    try:
        keys = keys_of(settings.admin)
    except (OSError, ValueError) as error:
        channel.send({"problem": str(error)})
        return 1
    settled_notice.listen()
    executor = StoreExecutor(engine)
    queue = Queue(settings.database, create=False, listen_database=settings.listen_database)
    takes = {
        name: JobSelector(pool.types, min_priority=pool.min_priority)
        for name, pool in settings.pools.items()
        if name in wakes
    }
    wake = functools.partial(wake_for, board=board, wakes=wakes, takes=takes)
    requests = Requests(queue, executor, settings.types, settings.max_waiting, wake)
    streams = JobStreams(queue)
    folder, bounds = upload_folder(settings, engine), settings.spool
    uploads = None
    if folder is not None:
        spool = Spool(folder, bounds.max_file, bounds.max_total)
        uploads = Uploads(spool, without_password(engine.url), executor, bounds.done)
    pools = tuple(settings.pools)
    watch, limits = OverviewWatch(executor), settings.limits
    state = AppState(
        settings.admin, keys, executor, requests, streams, watch, pools, supervisor, uploads, limits=limits
    )

    def leave(seconds: float) -> None:
        streams.end()
        loop.call_later(seconds, requests.leave)

    app = AccessMiddleware(direct(make_app(state), state), keys, settings.admin)
    server = Server(app, listening, channel, board.slot(ADMIN_SLOT), leave=leave)
    gc.collect()
    gc.freeze()  # the imported modules stay in memory
    # No asyncio runner: it would wait for threads that hang. Whatever is left ends with the process.
    loop = asyncio.new_event_loop()
    sweeping = loop.create_task(uploads.keep_sweeping()) if uploads is not None else None
    loop.run_until_complete(server.serve(sockets=[listening]))
    if sweeping is not None:
        sweeping.cancel()
    executor.close()
    return 0
