"""The end of a process that a handler has forked: where the handler ends, whatever way that is.

It has a copy of everything that its worker has in hand. Were it to go on, it would run and settle the worker's jobs
a second time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
from collections.abc import Mapping
from os import _exit
from traceback import print_exception
from typing import Any, NoReturn

from supervisor.system import signals

_FAILED, _INTERRUPTED = 1, 130


def end(error: BaseException | None = None) -> NoReturn:
    """End as Python would have at the end of a program that came to this, without its teardown."""
    code = _FAILED
    try:
        code = _code(error)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        _exit(code)


def _code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        print_exception(error)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return _FAILED


def flush() -> None:
    """Before a fork: what was printed and not written yet would be written by both processes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # somebody else's stream, which may be closed
            stream.flush()


def reset_signals(own: Mapping[int, Any]) -> None:
    """In the fork: a worker's signals mean nothing to it, and what ends other processes ends it."""
    signal.set_wakeup_fd(-1)
    faulthandler.unregister(signals.DUMP_STACKS)
    for number, handler in own.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
