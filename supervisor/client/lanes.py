"""The threads of `AsyncQueue` and of `Task.aenqueue`: one for each connection of a queue, started for its first call.

Jobs that wait at the same time are inserted in one transaction: a commit costs more than a job.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from supervisor.client.connections import Put, forgetful
from supervisor.domain.errors import holdable
from supervisor.domain.job import NewJob

Answer = TypeVar("Answer")
PutEach = Callable[[list[NewJob]], list[Put | Exception]]
"""Inserts jobs. See `Producer.put_each`."""
_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]  # None: the thread is to end

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
        self._calls: _Calls = SimpleQueue()
        self._runs = False
        self._batch: list[tuple[Future[Put], Callable[[], NewJob]]] | None = None  # the last call, if others may join

    def call(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Its result; a call that is cancelled before it begins is not made."""
        with self._lock:
            self._batch = None  # jobs that are inserted from now on come after this call
            return self._add(work)

    def insert(self, new: Callable[[], NewJob], put_each: PutEach) -> Future[Put]:
        """Insert the job that `new` returns, with others that wait, by one call of the first one's `put_each`."""
        future: Future[Put] = Future()
        with self._lock:
            if self._batch is None or len(self._batch) == _MOST_JOBS:
                self._batch = []
                self._add(functools.partial(self._insert, self._batch, put_each))
            self._batch.append((future, new))
        return future

    def _add(self, work: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()
        if not self._runs:
            # Daemonic: a program may end while another one holds the write lock.
            threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
            self._runs = True
        self._calls.put((future, work))
        return future

    def _insert(self, batch: list[tuple[Future[Put], Callable[[], NewJob]]], put_each: PutEach) -> None:
        with self._lock:
            if self._batch is batch:
                self._batch = None
        futures, jobs, size = list[Future[Put]](), list[NewJob](), 0
        while batch:
            future, new = batch.pop(0)
            if future.set_running_or_notify_cancel():
                job = _outcome(new)
                if isinstance(job, BaseException):
                    _complete(future, job)
                else:
                    futures.append(future)
                    jobs.append(job)
                    size += len(job.payload)
            if jobs and (not batch or size >= _MOST_SIZE):
                answers = _outcome(functools.partial(put_each, jobs))
                each = [answers] * len(jobs) if isinstance(answers, BaseException) else answers
                for one, answer in zip(futures, each, strict=True):
                    _complete(one, answer)
                futures, jobs, size = [], [], 0

    def end(self) -> Future[None]:
        """Done when all calls are made, and the thread ends. The next call starts another."""
        future: Future[None] = Future()
        with self._lock:
            if self._runs:
                self._calls.put((future, int))
                self._calls.put(None)
                self._calls, self._runs, self._batch = SimpleQueue(), False, None
            else:
                future.set_result(None)
        return future

    def __del__(self) -> None:
        if self._runs:
            self._calls.put(None)


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        future, work = call
        if future.set_running_or_notify_cancel():
            _complete(future, _outcome(work))
        del call, future, work  # with what they hold, before the next one is waited for


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
