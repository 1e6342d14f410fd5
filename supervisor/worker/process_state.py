"""What a handler may change for its whole process, and what the other jobs must find unchanged.

Recorded after the set-up, compared after slow jobs and now and then after quick ones, and restored.
What cannot be restored is named, and the worker exits.
"""

from __future__ import annotations

import _locale  # without the tables of `locale`, which few programs need
import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which would cost more than the rest
import builtins
import faulthandler
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from supervisor.system import kernel, privileges, signals
from supervisor.worker.interpreter_state import Difference, InterpreterState, Value, differences, record

# Imported by name: restoring must not use what a handler has replaced.
_getsignal, _set_signal, _sigmask = _signal.getsignal, _signal.signal, _signal.pthread_sigmask
_getitimer, _setitimer = signal.getitimer, signal.setitimer
_getcwd, _chdir, _umask, _getpriority, _setpriority = os.getcwd, os.chdir, os.umask, os.getpriority, os.setpriority
_readlink = os.readlink
_getresuid, _setresuid, _getresgid, _setresgid = os.getresuid, os.setresuid, os.getresgid, os.setresgid
_getaffinity, _setaffinity = os.sched_getaffinity, os.sched_setaffinity
_getscheduler, _setscheduler, _getparam = os.sched_getscheduler, os.sched_setscheduler, os.sched_getparam
_getrlimit, _setrlimit, _setlocale = resource.getrlimit, resource.setrlimit, _locale.setlocale

_LOCALE_ERROR: type[Exception] = _locale.Error  # type: ignore[attr-defined]  # it exists; the stubs lack it
_STDERR = 2
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_FUNCTIONS: tuple[tuple[ModuleType, str], ...] = (
    *((time, name) for name in ("time", "monotonic", "sleep")),
    *((json, name) for name in ("dumps", "loads")),
    *((os, name) for name in ("close", "dup", "fstat", "getpid", "kill", "open", "read", "write", "eventfd_read")),
)
_LIMITS = {value: name for name, value in reversed(vars(resource).items()) if name.startswith("RLIMIT_")}
_HANDLED = tuple(sorted(set(signals.EVERY) - {signal.SIGKILL, signal.SIGSTOP}))


def _cwd() -> str:
    try:
        return _getcwd()
    except OSError:  # deleted: as a release may be before the reload. If it is our own folder, nothing has changed
        return _readlink("/proc/self/cwd").removesuffix(" (deleted)")


def _set_streams(streams: Sequence[Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = streams


def _socket_timeout() -> float | None:
    module = sys.modules.get("_socket")
    return None if module is None else module.getdefaulttimeout()


def _set_socket_timeout(seconds: float | None) -> None:
    module = sys.modules.get("_socket")
    if module is not None:
        module.setdefaulttimeout(seconds)


def _streams() -> tuple[object, ...]:
    return tuple(getattr(sys, name, None) for name in ("stdin", "stdout", "stderr"))


def _stream_settings() -> list[tuple[object, ...]]:
    """How the standard streams encode; None in place of one that cannot be written to any more."""
    found: list[tuple[object, ...]] = []
    for name in ("__stdout__", "__stderr__"):
        try:
            stream = getattr(sys, name)
            found.append((stream.encoding, stream.errors, stream.closed))
        except (AttributeError, ValueError):  # detached
            found.append(())
    return found


def _put_stream_settings(before: list[tuple[Any, ...]]) -> None:
    for name, (encoding, errors, closed) in zip(("__stdout__", "__stderr__"), before, strict=True):
        try:
            stream = getattr(sys, name)
            if stream.closed == closed:
                stream.reconfigure(encoding=encoding, errors=errors)
                continue
        except (AttributeError, ValueError):
            pass  # detached
        raise PermissionError


def _cannot_be_put_back(before: object) -> None:
    raise PermissionError


_VALUES = (
    # The user ids first: with them the other rights may come back.
    Value("the user", _getresuid, lambda ids: _setresuid(*ids)),
    Value("the group", _getresgid, lambda ids: _setresgid(*ids)),
    Value("the file-system user id", kernel.file_ids, lambda ids: kernel.set_file_ids(*ids)),
    Value("the capabilities", privileges.capabilities, privileges.set_capabilities),
    Value("no_new_privs or a seccomp filter", privileges.restrictions, _cannot_be_put_back),
    Value("the working directory", _cwd, _chdir),
    *(Value(f"the limit {name}", partial(_getrlimit, n), partial(_setrlimit, n)) for n, name in _LIMITS.items()),
    Value("the nice value", partial(_getpriority, os.PRIO_PROCESS, 0), partial(_setpriority, os.PRIO_PROCESS, 0)),
    Value("the scheduling policy", lambda: (_getscheduler(0), _getparam(0)), lambda policy: _setscheduler(0, *policy)),
    Value("the CPU affinity", partial(_getaffinity, 0), partial(_setaffinity, 0)),
    Value("a standard stream", _streams, _set_streams),
    Value("how a standard stream encodes", _stream_settings, _put_stream_settings),
    Value("the locale", partial(_setlocale, _locale.LC_ALL, None), partial(_setlocale, _locale.LC_ALL)),
    Value("the sockets' default timeout", _socket_timeout, _set_socket_timeout),
)
# Checks that cost as much as all the others together.
_PLACES = (Value("the root folder or a namespace", privileges.place, _cannot_be_put_back),)


class Changes(NamedTuple):
    """What was found changed: either restored, or impossible to restore."""

    restored: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ()


_NONE = Changes()


class ProcessState:
    """The state at the time this is created. `own` are the signal handlers of the worker, which are set again each
    time: C code may have replaced them without Python knowing. `wakeup` is the descriptor that signals write to.
    """

    def __init__(self, own: dict[int, Callable[..., Any]], wakeup: int) -> None:
        self._own = own
        self._wakeup = wakeup
        self._mask = frozenset(_sigmask(signal.SIG_BLOCK, ())) - set(own)
        self._handlers = [(number, _getsignal(number)) for number in _HANDLED if number not in own]
        self._timers = [(timer, _getitimer(timer)[1]) for timer in _TIMERS]
        self._umask = _umask(0)
        _umask(self._umask)
        self._environ = os.environ
        self._environment = dict(_raw_environment())
        self._path, self._path_items = sys.path, list(sys.path)
        self._recursion = sys.getrecursionlimit()
        self._values = record(_VALUES)
        self._oom_score, self._places = privileges.oom_score(), record(_PLACES)
        self._builtins = dict(vars(builtins))
        self._functions = [(module, name, getattr(module, name)) for module, name in _FUNCTIONS]
        self._interpreter = InterpreterState()
        self.take_signals()

    def take_signals(self) -> None:
        """Set the worker's own signal handlers again, whoever has replaced them."""
        for number, handler in self._own.items():
            _set_signal(number, handler)
        faulthandler.register(signals.DUMP_STACKS, file=_STDERR, all_threads=True)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def restore(self, *, closely: bool) -> Changes:
        """Restore what differs. Costs about forty microseconds if nothing does; a close check costs the same again."""
        if sys.getrecursionlimit() != self._recursion:  # first: everything else needs the stack depth
            sys.setrecursionlimit(self._recursion)
        self.take_signals()
        restored: list[str] = []
        lasting: list[str] = []
        for what, put_back in self._differences(closely):
            try:
                put_back()
            except (OSError, ValueError, _LOCALE_ERROR):
                lasting.append(what)
            else:
                restored.append(what)
        return Changes(tuple(restored), tuple(lasting)) if restored or lasting else _NONE

    def _differences(self, closely: bool) -> Iterator[Difference]:
        if builtins.__dict__ != self._builtins:
            yield from self._differences_of_builtins()
        for module, name, function in self._functions:
            if getattr(module, name, None) is not function:
                yield f"{module.__name__}.{name}", partial(setattr, module, name, function)
        yield from self._differences_of_signals()
        if _umask(self._umask) != self._umask:
            yield "the umask", partial(_umask, self._umask)
        if os.environ is not self._environ or _raw_environment() != self._environment:
            yield "the environment", self._put_environment_back
        if sys.path is not self._path or sys.path != self._path_items:
            yield "sys.path", self._put_path_back
        yield from differences(self._values)
        yield from self._interpreter.differences()
        if closely:
            yield from self._differences_on_a_close_look()

    def _differences_of_builtins(self) -> Iterator[Difference]:
        """None of these calls one of them. Names that a handler has added may stay: `gettext.install` adds one."""
        found = builtins.__dict__
        for name, value in self._builtins.items():
            if found.get(name) is not value and name != "_":
                yield name, partial(found.__setitem__, name, value)

    def _differences_of_signals(self) -> Iterator[Difference]:
        for timer, interval in self._timers:  # first: without the handler for it, its signal would end the process
            if not interval and any(_getitimer(timer)):
                yield "a timer", partial(_setitimer, timer, 0)
        for number, handler in self._handlers:
            if _getsignal(number) is not handler and _getsignal(number) != handler:
                yield f"the handler of {signals.name_of(number)}", partial(_set_handler, number, handler)
        if frozenset(_sigmask(signal.SIG_BLOCK, ())) != self._mask:
            yield "the signal mask", partial(_sigmask, signal.SIG_SETMASK, self._mask)

    def _differences_on_a_close_look(self) -> Iterator[Difference]:
        """Checks that cost as much as all the others together."""
        yield from self._interpreter.differences_of_modules()
        if privileges.oom_score() != self._oom_score and self._oom_score is not None:
            yield "oom_score_adj", partial(privileges.set_oom_score, self._oom_score)
        yield from differences(self._places)

    def _put_environment_back(self) -> None:
        os.environ = self._environ  # noqa: B003 - the original object, whose keys reach C code, too
        for name in _raw_environment().keys() - self._environment.keys():
            del os.environ[os.fsdecode(name)]
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in self._environment.items()})

    def _put_path_back(self) -> None:
        sys.path = self._path
        sys.path[:] = self._path_items


def _raw_environment() -> dict[bytes, bytes]:
    """What `os.environ` holds, without decoding each name and value."""
    return getattr(os.environ, "_data", {})


def _set_handler(number: int, handler: Any) -> None:
    # None: set by C code; Python cannot set it again. The system's default is the best alternative.
    _set_signal(number, signal.SIG_DFL if handler is None else handler)
