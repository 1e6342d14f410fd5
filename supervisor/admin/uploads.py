"""Requests whose body is a file: from the connection into the spool, without holding it in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from starlette.datastructures import Headers

from supervisor.domain.errors import QueueError, StoreUnavailable
from supervisor.domain.spool import Label
from supervisor.system.spool import Spool, Upload

Answer = TypeVar("Answer")

PIECE = 1 << 20  # bytes that are written together
_THREADS = 4
JSON = "application/json"
FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""What another site's form can send: never a file."""


class NoSpool(QueueError):
    """Files are not taken here."""

    hint = "name a folder that all hosts share: folder in [spool]"

    def __init__(self) -> None:
        super().__init__("the body must be JSON: without a folder for them, files are not taken")


class SpoolUnusable(StoreUnavailable):
    """The folder cannot be written."""


def media_type(headers: Headers) -> str | None:
    """The media type of a body, without its parameters; None if the request does not say it."""
    kind = headers.get("content-type")
    return None if kind is None else kind.partition(";")[0].strip().lower()


def is_file(method: str, path: str, headers: Headers) -> bool:
    """Whether the body of a request is a file, by what its head says."""
    kind = media_type(headers)
    return method == "POST" and path.startswith("/run/") and kind is not None and kind != JSON and kind not in FORMS


class Uploads:
    """Those of one admin process. Threads are made for the first one: a slow disk must not delay other requests.

    `database` is its URL without a password.
    """

    def __init__(self, spool: Spool, database: str) -> None:
        self.spool = spool
        self.database = database
        self.active: set[str] = set()  # tokens of files whose job is not inserted yet
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")

    async def receive(self, request: Request, type: str, key: Callable[[str], str]) -> Received:
        """The body of a request, once it is whole and survives a power failure. `key` makes the job's unique key of
        the file's token.

        Raises FileTooLarge, SpoolFull and SpoolUnusable; ClientDisconnect if the client goes away. Then nothing is
        left of it.
        """
        upload = await self.within(self.spool.begin, _declared(request))
        self.active.add(upload.token)
        try:
            piece = bytearray()
            async for chunk in request.stream():
                piece += chunk
                if len(piece) >= PIECE:
                    await self.within(upload.write, bytes(piece))
                    piece.clear()
                    _note_progress(request)
            await self.within(upload.write, bytes(piece))
            unique_key = key(upload.token)
            path = await self.within(upload.finish, Label(self.database, type, unique_key).written())
        except Exception:
            await self.discard(upload)
            raise
        except BaseException:  # this process is about to end
            self._threads.submit(upload.discard)
            raise
        return Received(self, upload, str(path), unique_key)

    async def discard(self, upload: Upload) -> None:
        """If the folder cannot be used, the file is left: it is found later."""
        self.active.discard(upload.token)
        with contextlib.suppress(SpoolUnusable):
            await self.within(upload.discard)

    async def within(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """What a call of the spool returns. Raises SpoolUnusable for its OSError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except OSError as error:
            raise SpoolUnusable(f"the spool cannot be used: {error.strerror or error}") from None

    def close(self) -> None:
        """A thread that hangs in a call is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Received:
    """A whole file, for a job that is about to be inserted."""

    def __init__(self, uploads: Uploads, upload: Upload, path: str, unique_key: str) -> None:
        self._uploads = uploads
        self._upload = upload
        self.path = path
        self.unique_key = unique_key

    def keep(self) -> None:
        """A job names it, or may do so: from now on it is judged by its label."""
        self._uploads.active.discard(self._upload.token)

    async def discard(self) -> None:
        """No job names it."""
        await self._uploads.discard(self._upload)


def _declared(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isdecimal() and "transfer-encoding" not in request.headers else None


def _note_progress(request: Request) -> None:
    """A connection is cut off when its body does not advance: see `connection.py`."""
    request.state.pieces = getattr(request.state, "pieces", 0) + 1
