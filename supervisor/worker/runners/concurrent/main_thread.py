"""What the main thread does while others run and claim: it runs the event loop of the handlers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from supervisor.system.forkmark import Mark
from supervisor.worker import forked
from supervisor.worker.event_loop import EventLoop
from supervisor.worker.fitness import Ruined


class MainThread:
    """Created in the main thread."""

    def __init__(self, loop: EventLoop, mark: Mark, log: Any) -> None:
        self._loop = loop
        self._mark = mark
        self._log = log
        self._ident = threading.get_ident()
        self._left = False
        self._calls: deque[Callable[[], None]] = deque()

    def serve(self) -> None:
        """Run the event loop until `leave`. Raises Ruined if a job has broken it."""
        while not self._left:
            try:
                self._loop.serve()
            except BaseException as error:
                if not self._mark[0]:
                    forked.end()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                self._log.warning("event_loop_interrupted", error=repr(error))  # raised by what a job has started
            if not self._mark[0]:
                forked.end()
            while self._calls:
                self._calls.popleft()()

    def leave(self) -> None:
        self._left = True
        self._loop.pause()

    def call(self, call: Callable[[], None], patience: float) -> None:
        """Have the main thread do this outside of the event loop, if it begins to within these seconds. Raises what
        `call` raises.
        """
        permit, done, errors = deque([True]), threading.Event(), deque[BaseException]()

        def called() -> None:
            try:
                if permit:
                    permit.pop()
                    call()
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._calls.append(called)
        self._loop.pause()
        if not done.wait(patience) and permit:
            permit.clear()
            return
        done.wait()
        if errors:
            raise errors[0]

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._ident:
            self._loop.detach()
