"""The end of a process that a handler has forked: it ends where the handler ends, in whatever way.

It has a copy of everything that its worker holds. If it continued, it would run and settle the worker's jobs
a second time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from os import _exit
from traceback import print_exception
from typing import Any, NoReturn

from supervisor.system import signals, standard_streams
from supervisor.system.mappings import ALWAYS, Mark, fork_mark

_FAILED, _INTERRUPTED = 1, 130

mark: Mark = ALWAYS
"""`mark[0]` is 0 in a process that was forked from the worker."""


def protect() -> None:
    """From now on this process is a worker, and each process that it forks is not."""
    global mark
    mark = fork_mark()


def leave(error: BaseException | None = None) -> None:
    """End if this is a process that a handler has forked. To be called wherever the code of a handler has returned,
    or has raised `error`.
    """
    if not mark[0]:
        end(error)


def end(error: BaseException | None = None) -> NoReturn:
    """End as Python ends a program that has reached this point, without the worker's teardown."""
    code = _FAILED
    try:
        code = _code(error)
        standard_streams.flush()
    finally:
        _exit(code)


def _code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        print_exception(error)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return _FAILED


class Forks:
    """What a worker does around a fork of its process, whether a handler or a library forks.

    `own` are the signal handlers that the worker has set; `foreign` are the numbers of the signals that the worker does
    not use. Those are blocked during the fork. Otherwise one that arrives at a fork just then would be swallowed by the
    worker's own handler, and its sender would wait forever.
    """

    def __init__(self, own: Mapping[int, Any], foreign: Iterable[int]) -> None:
        self._own = own
        self._foreign = frozenset(foreign)
        self._here = threading.local()  # several threads may fork at once

    def before(self) -> None:
        """Flush what was printed; otherwise both processes would write it."""
        standard_streams.flush()
        self._here.loop = asyncio._get_running_loop()
        self._here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._foreign)

    def after_in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._here.mask)

    def after_in_child(self) -> None:
        """Remove the worker's signal handlers, so that signals have their default effect again. asyncio has forgotten
        the event loop, so that the child may run one of its own. If it returns to the old one, that remembers first.
        """
        if (loop := self._here.loop) is not None:
            loop.call_soon(asyncio._set_running_loop, loop)
            getattr(loop, "_ready", deque[object]()).rotate(1)
        signal.set_wakeup_fd(-1)
        faulthandler.unregister(signals.DUMP_STACKS)
        for number, handler in self._own.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._here.mask)
