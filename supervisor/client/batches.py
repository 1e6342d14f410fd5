"""Batches: jobs after which one more is enqueued, once. `Queue.batch` makes one, `Queue.batches` looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from supervisor.domain.enqueueing import payload_of
from supervisor.domain.errors import InvalidJob
from supervisor.domain.values import LAST_ID, checked_type, whole
from supervisor.store.base import BatchView

if TYPE_CHECKING:
    from typing import Self, Unpack

    from supervisor.client.administration import Administration
    from supervisor.client.asynchronous import AsyncQueue
    from supervisor.client.queue import Queue
    from supervisor.domain.enqueueing import CommonOptions, Enqueue, JobOptions


class Typed(Protocol):
    """A task."""

    type: str


OnDone = str | Typed | None


class Batches:
    """`Queue.batches`. Without `Queue.batch`, a batch can be made step by step, also by several programs: open it,
    enqueue jobs with `batch=` its id, close it.
    """

    def __init__(self, queue: Administration) -> None:
        self._queue = queue

    def open(self, on_done: OnDone = None, payload: object = None, *, connection: object = None) -> int:
        """Begin a batch and return its id. See `Queue.batch`. Raises InvalidJob."""
        try:
            type_ = None if on_done is None else checked_type(getattr(on_done, "type", on_done))
        except InvalidJob as error:
            raise InvalidJob("on_done", error.problem) from None
        text = payload_of(payload)
        if connection is not None:
            return self._queue._on(connection).open_batch(connection, type_, text)
        return self._queue._changed(lambda operations: operations.batches.open(type_, text))

    def close(self, batch_id: int, *, connection: object = None) -> None:
        """All its jobs are there: it ends when the last of them has ended, at once if they all have. One that is closed
        already stays as it is. Raises BatchNotFound.
        """
        number = _number(batch_id)
        if connection is not None:
            self._queue._on(connection).close_batch(connection, number)
        else:
            self._queue._changed(lambda operations: operations.batches.close(number))

    def get(self, batch_id: int) -> BatchView:
        """The batch as it is now, with the numbers of its jobs. Raises BatchNotFound."""
        number = _number(batch_id)
        return self._queue._asked(self._queue._connections.lister, lambda operations: operations.batches.get(number))

    def unfinished(self) -> list[BatchView]:
        """The latest 50 that have not ended. One that is open and that no program closes any more is among them."""
        return self._queue._asked(self._queue._connections.lister, lambda operations: operations.batches.unfinished())


def _number(batch_id: object) -> int:
    return whole("batch_id", batch_id, 1, LAST_ID)


class Batch:
    """A batch while its jobs are enqueued, for a `with` statement: see `Queue.batch`. `id` is known inside it."""

    id: int

    def __init__(self, queue: Queue, on_done: OnDone, payload: object, connection: object) -> None:
        self._queue, self._on_done, self._payload, self._connection = queue, on_done, payload, connection

    def enqueue(self, type: str, payload: object = None, **options: Unpack[JobOptions]) -> int:
        """See `Queue.enqueue`."""
        options["batch"] = self.id
        return self._queue.enqueue(type, payload, connection=self._connection, **options)

    def enqueue_many(
        self, type: str, payloads: Iterable[object | Enqueue], **options: Unpack[CommonOptions]
    ) -> list[int]:
        """See `Queue.enqueue_many`."""
        options["batch"] = self.id
        return self._queue.enqueue_many(type, payloads, connection=self._connection, **options)

    def __enter__(self) -> Self:
        self.id = self._queue.batches.open(self._on_done, self._payload, connection=self._connection)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._queue.batches.close(self.id, connection=self._connection)
        elif self._connection is None:
            error.add_note(left_open(self.id))


class AsyncBatch:
    """`Batch` for an `async with` statement: see `AsyncQueue.batch`."""

    id: int

    def __init__(self, queue: AsyncQueue, on_done: OnDone, payload: object, connection: object) -> None:
        self._queue, self._on_done, self._payload, self._connection = queue, on_done, payload, connection

    async def enqueue(self, type: str, payload: object = None, **options: Unpack[JobOptions]) -> int:
        """See `Queue.enqueue`."""
        options["batch"] = self.id
        return await self._queue.enqueue(type, payload, connection=self._connection, **options)

    async def enqueue_many(
        self, type: str, payloads: Iterable[object | Enqueue], **options: Unpack[CommonOptions]
    ) -> list[int]:
        """See `Queue.enqueue_many`."""
        options["batch"] = self.id
        return await self._queue.enqueue_many(type, payloads, connection=self._connection, **options)

    async def __aenter__(self) -> Self:
        self.id = await self._queue.batches.open(self._on_done, self._payload, connection=self._connection)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self._queue.batches.close(self.id, connection=self._connection)
        elif self._connection is None:
            error.add_note(left_open(self.id))


def left_open(batch: int) -> str:
    """Whose block has ended with an exception."""
    return (
        f"batch {batch} stays open: the jobs that are in it run, and nothing is enqueued when they have ended; "
        f"`supervisor jobs batch {batch} --close` closes it, `supervisor jobs cancel --batch {batch}` cancels them"
    )
