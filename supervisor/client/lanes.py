"""The threads of `AsyncQueue` and of `Task.aenqueue`: one for each connection of a queue, started for its first call.

Jobs that wait at the same time are inserted in one transaction: a commit costs more than a job.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from supervisor.client.connections import forgetful
from supervisor.domain.errors import holdable
from supervisor.domain.job import NewJob

Answer = TypeVar("Answer")
Put = tuple[int, bool]
"""The id of a job, and whether it is new."""
PutEach = Callable[[list[NewJob]], list[Put | Exception]]
"""Inserts jobs. See `Producer.put_each`."""

WRITER, READER, LISTER = "writer", "reader", "lister"  # as the connections of a queue

_MOST_JOBS = 500  # in one transaction: others want to write, too
_MOST_SIZE = 1 << 20  # characters of payloads after which no other job is added


class Lane:
    """A thread that makes the calls of one connection, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = f"supervisor_{name}"
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        self._lock = threading.Lock()
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._runs = False
        self._last = _Call(Future(), None)  # made now: at the end of the program, this module has no names any more

    def call(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Its result; a call that is cancelled before it begins is not made."""
        future: Future[Answer] = Future()
        self._add(_Call(future, work))
        return future

    def insert(self, new: Callable[[], NewJob], put_each: PutEach) -> Future[Put]:
        """Insert the job that `new` returns, with others that wait, by one call of `put_each`."""
        future: Future[Put] = Future()
        self._add(_Call(future, new, put_each))
        return future

    def _add(self, call: _Call) -> None:
        with self._lock:
            if not self._runs:
                # Daemonic: a program may end while another one holds the write lock.
                threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
                self._runs = True
            self._calls.put(call)

    def end(self) -> Future[None]:
        """Done when all calls are made and the thread ends. The next call starts another."""
        future: Future[None] = Future()
        with self._lock:
            if self._runs:
                self._runs = False
                self._calls.put(_Call(future, None))
                self._calls = SimpleQueue()
            else:
                future.set_result(None)
        return future

    def __del__(self) -> None:
        if self._runs:
            self._calls.put(self._last)


class _Call(NamedTuple):
    """With `put_each`, `work` returns a job that it inserts. Without `work`, the thread is to end."""

    future: Future[Any]
    work: Callable[[], Any] | None
    put_each: PutEach | None = None


def _serve(calls: SimpleQueue[_Call]) -> None:
    following: _Call | None = None
    while True:
        call, following = following or calls.get(), None
        if call.work is None:
            call.future.set_result(None)
            return
        if call.put_each is not None:
            following = _insert_together(call, call.put_each, calls)
        elif call.future.set_running_or_notify_cancel():
            _complete(call.future, _outcome(call.work))
        del call  # with what it holds, before the next one is waited for


def _insert_together(first: _Call, put_each: PutEach, calls: SimpleQueue[_Call]) -> _Call | None:
    """Insert the jobs of this call and of those that wait behind it, up to the next call of another kind, which is
    returned. Each has a result or an error of its own.
    """
    futures, jobs, size = list[Future[Put]](), list[NewJob](), 0
    call: _Call | None = first
    while call is not None and call.work is not None and call.put_each is not None:
        if call.future.set_running_or_notify_cancel():
            job = _outcome(call.work)
            if isinstance(job, BaseException):
                _complete(call.future, job)
            else:
                futures.append(call.future)
                jobs.append(job)
                size += len(job.payload)
        call = None
        if len(jobs) < _MOST_JOBS and size < _MOST_SIZE:
            with suppress(Empty):
                call = calls.get_nowait()
    if jobs:
        answers = _outcome(functools.partial(put_each, jobs))
        each = [answers] * len(jobs) if isinstance(answers, BaseException) else answers
        for future, answer in zip(futures, each, strict=True):
            _complete(future, answer)
    return call


def _outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or raises."""
    try:
        return work()
    except BaseException as error:
        return error


def _complete(future: Future[Any], outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(holdable(outcome))
    else:
        future.set_result(outcome)
