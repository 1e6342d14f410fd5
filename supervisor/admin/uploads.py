"""Requests whose body is a file: from the connection into the spool, and away when no job needs it.

See `system/spool.py` for what lies there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from supervisor.admin.access import declared_length, media_type
from supervisor.admin.answers import AGAIN, Refused
from supervisor.admin.store_executor import StoreExecutor
from supervisor.client.connections import Put
from supervisor.domain.enqueueing import once_key, payload_of
from supervisor.domain.errors import InvalidJob, QueueFull, StoreBusy, StoreError, WriteFailed
from supervisor.domain.job import NewJob
from supervisor.system.spool import Label, Spool, Spooled
from supervisor.telemetry import events

Answer = TypeVar("Answer")

PIECE = 1 << 20  # bytes that are written together
_THREADS = 4
_NOT_INSERTED = (InvalidJob, QueueFull, StoreBusy, WriteFailed)
EVERY = 30.0  # seconds between two looks at the folder
_REST = 0.2  # while there is more to compare: others use the database, too
_MOST = 500  # files that are compared at once
GRACE = 600.0  # seconds: an insert that waits for other writers is certainly over by then


def may_go(has_job: bool, succeeded_at: float | None, now: float, keep_done: float | None) -> bool:
    """Whether nobody needs the file any more. `keep_done`: seconds after the success of its job; None: as long as the
    job. A job that has not succeeded can be retried, so it keeps its file.
    """
    if not has_job:
        return True
    return succeeded_at is not None and keep_done is not None and succeeded_at < now - keep_done


def payload_of_file(path: str, media_type: str, fields: str | None) -> dict[str, Any]:
    """The payload of a job for a file. `fields` is a JSON object with further ones. Raises InvalidJob."""
    try:
        found = {} if fields is None else json.loads(fields)
    except (ValueError, RecursionError) as error:
        raise InvalidJob("fields", f"it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidJob("fields", 'it must be a JSON object, like {"width": 400}')
    own = {"path": path, "media_type": media_type}
    if given := own.keys() & found.keys():
        raise InvalidJob("fields", f"{min(given)} is that of the file; leave it out")
    return found | own


class Uploads:
    """The files of one admin process. Threads are made for the first one: a slow disk must not delay other requests.

    `database` is its URL without a password; `keep_done` is seconds after the success of a job until its file goes,
    None: as long as the job.
    """

    def __init__(self, spool: Spool, database: str, executor: StoreExecutor, keep_done: float | None) -> None:
        self.spool = spool
        self._database = database
        self._executor = executor
        self._keep_done = keep_done
        self._active: set[str] = set()  # tokens of files whose job is not inserted yet
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")

    async def insert(
        self, request: Request, job: NewJob, fields: str | None, insert: Callable[[NewJob], Awaitable[Put]]
    ) -> Put:
        """Store the body of a request, and once it is whole and survives a power failure, insert the job that names it.
        Its id, and whether it is new.

        Raises what `insert` does; InvalidJob, FileTooLarge, SpoolFull, and Refused if the folder cannot be used;
        ClientDisconnect if the client goes away. A file that no job names is removed; one that a job may name is judged
        by its label later.
        """
        kind = media_type(request.headers) or ""
        payload_of(payload_of_file("", kind, fields))  # before a byte is read: a refused file is uploaded in vain
        try:
            upload = await self._within(self.spool.begin, declared_length(request.headers))
            self._active.add(upload.token)
            named = False
            try:
                piece = bytearray()
                async for chunk in request.stream():
                    piece += chunk
                    if len(piece) >= PIECE:
                        await self._within(upload.write, bytes(piece))
                        piece.clear()
                        # A connection is cut off when its body does not advance: see `server.py`.
                        request.state.pieces = getattr(request.state, "pieces", 0) + 1
                await self._within(upload.write, bytes(piece))
                # Without an idempotency key, a key of its own, with a space, as no header has it: it finds the job.
                key = job.unique_key or once_key(f" {upload.token}")
                path = await self._within(upload.finish, Label(self._database, job.type, key))
                payload = payload_of(payload_of_file(str(path), kind, fields))
                try:
                    job_id, named = await insert(job._replace(payload=payload, unique_key=key))
                except BaseException as error:
                    named = not isinstance(error, _NOT_INSERTED)
                    raise
                return job_id, named
            finally:
                self._active.discard(upload.token)
                if not named:
                    with contextlib.suppress(OSError):  # it is left, and found later
                        await self._within(upload.discard)
        except OSError as error:
            raise Refused(503, f"the spool cannot be used: {error.strerror or error}", headers=AGAIN) from None

    async def _within(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """What a call of the spool returns, or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def keep_sweeping(self) -> None:
        """Remove what no job needs, without end. What fails is tried again, and logged once."""
        logged = ""
        while True:
            try:
                await self.sweep()
                logged = ""
            except (StoreError, OSError) as error:
                if str(error) != logged:
                    logged = str(error)
                    events(process="admin").warning("spool_not_swept", error=logged, next_try_seconds=EVERY)
            await asyncio.sleep(EVERY)

    async def sweep(self) -> None:
        """Compare the files with the jobs, some at a time. Without files nothing is queried. Raises StoreError."""
        lying = await self._within(self.spool.unchanged, GRACE)
        old = [one for one in lying if one.token not in self._active]
        for start in range(0, len(old), _MOST):
            if start:
                await asyncio.sleep(_REST)
            await self._remove(old[start : start + _MOST])

    async def _remove(self, some: Sequence[Spooled]) -> None:
        labels = await self._within(lambda: [self.spool.label(one) if one.body else None for one in some])
        labelled = list(zip(some, labels, strict=True))
        going = [one for one, label in labelled if label is None]
        own = [(one, label) for one, label in labelled if label is not None and label.database == self._database]
        if own:
            files = [(one.body, label.type, label.unique_key) for one, label in own]
            named, now = await self._executor.ask(
                lambda operations: (operations.backlog.spooled(files), operations.statistics.now())
            )
            going += [one for one, _ in own if may_go(one.body in named, named.get(one.body), now, self._keep_done)]
        for one in going:
            await self._within(self.spool.remove, one)
        if going:
            events(process="admin").debug("spool_swept", files=len(going))
