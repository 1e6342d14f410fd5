"""What a handler may change for the whole interpreter: recorded after the set-up, compared and restored between jobs.

A module that nothing has imported is not imported here: nobody can have changed it either.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, MutableSequence
from functools import partial
from types import ModuleType
from typing import Any

Difference = tuple[str, Callable[[], object]]

# Imported by name: restoring must not use what a handler has replaced.
_get_trace, _get_profile, _set_trace, _set_profile = sys.gettrace, sys.getprofile, sys.settrace, sys.setprofile
_get_switch, _set_switch = sys.getswitchinterval, sys.setswitchinterval
_get_digits, _set_digits = sys.get_int_max_str_digits, sys.set_int_max_str_digits
_get_threshold, _set_threshold = gc.get_threshold, gc.set_threshold
_running_loop, _set_running_loop = asyncio._get_running_loop, asyncio._set_running_loop
_tzset = time.tzset

_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")


class InterpreterState:
    """The state at the time this is created."""

    def __init__(self) -> None:
        self._lists = [
            _List("sys.meta_path", sys, "meta_path"),
            _List("sys.path_hooks", sys, "path_hooks"),
            _List("the filters of warnings", warnings, "filters"),
        ]
        self._collects, self._threshold = gc.isenabled(), _get_threshold()
        self._switch, self._digits = _get_switch(), _get_digits()
        self._trace, self._profile = _get_trace(), _get_profile()
        self._hooks = _hooks()
        self._names = list(sys.modules)
        self._modules = list(map(sys.modules.get, self._names))
        self._table = sys.modules
        self._decimal = _decimal_context()
        self._logging = _logging_disabled()
        self._zone = time.tzname

    def differences(self) -> Iterator[Difference]:
        """What a quick check shows. The environment must be restored first: the time zone comes from there."""
        if gc.isenabled() is not self._collects:
            yield "garbage collection", gc.enable if self._collects else gc.disable
        if _get_threshold() != self._threshold:
            yield "the thresholds of garbage collection", partial(_set_threshold, *self._threshold)
        if _get_switch() != self._switch:
            yield "the interval of thread switches", partial(_set_switch, self._switch)
        if _get_digits() != self._digits:
            yield "the maximum number of digits", partial(_set_digits, self._digits)
        if _running_loop() is not None:
            yield "the running event loop", partial(_set_running_loop, None)
        if time.tzname != self._zone:
            yield "the time zone", _tzset
        for items in self._lists:
            if items.differs():
                yield items.what, items.put_back
        yield from self._differences_of_hooks()
        yield from self._differences_of_libraries()

    def _differences_of_hooks(self) -> Iterator[Difference]:
        if _get_trace() is not self._trace:
            yield "the trace function", partial(_set_trace, self._trace)
        if _get_profile() is not self._profile:
            yield "the profile function", partial(_set_profile, self._profile)
        if _hooks() != self._hooks:
            yield "the trace function of threads", self._put_hooks_back

    def _differences_of_libraries(self) -> Iterator[Difference]:
        if _logging_disabled() != self._logging:
            yield "logging.disable", partial(_disable_logging, self._logging)
        found = _decimal_context()
        if found is not None and found != (self._decimal or _default_decimal_context()):
            yield "the decimal context", self._put_decimal_back

    def differences_of_modules(self) -> Iterator[Difference]:
        """The modules that were imported by then. Costs about thirty nanoseconds for each."""
        if sys.modules is not self._table:
            yield "sys.modules", partial(setattr, sys, "modules", self._table)
        if list(map(self._table.get, self._names)) != self._modules:
            for name, module in zip(self._names, self._modules, strict=True):
                if self._table.get(name) is not module and module is not None:
                    yield f"the module {name}", partial(self._table.__setitem__, name, module)

    def _put_hooks_back(self) -> None:
        trace, profile = self._hooks
        threading.settrace(trace)
        threading.setprofile(profile)

    def _put_decimal_back(self) -> None:
        module = sys.modules["decimal"]
        values = dict(zip(_DECIMAL, self._decimal or _default_decimal_context() or (), strict=False))
        module.setcontext(module.Context(**values))


class _List:
    """A list that is an attribute of a module: the same object, with the items that it had."""

    def __init__(self, what: str, module: ModuleType, name: str) -> None:
        self.what = what
        self._module = module
        self._name = name
        self._list: MutableSequence[Any] = getattr(module, name)
        self._items = self._list[:]

    def differs(self) -> bool:
        return getattr(self._module, self._name, None) is not self._list or self._list != self._items

    def put_back(self) -> None:
        setattr(self._module, self._name, self._list)
        self._list[:] = self._items
        if self._module is warnings and hasattr(warnings, "_filters_mutated"):
            warnings._filters_mutated()  # discard cached decisions made with the other filters


def _hooks() -> tuple[Any, Any]:
    return threading.gettrace(), threading.getprofile()


def _logging_disabled() -> int:
    module = sys.modules.get("logging")
    return 0 if module is None else module.root.manager.disable


def _disable_logging(level: int) -> None:
    sys.modules["logging"].disable(level)


def _decimal_context() -> tuple[Any, ...] | None:
    module = sys.modules.get("decimal")
    return None if module is None else _values_of(module.getcontext())


def _default_decimal_context() -> tuple[Any, ...] | None:
    """The unchanged default context, for when nothing had imported `decimal` before the first job."""
    module = sys.modules.get("decimal")
    return None if module is None else _values_of(module.DefaultContext)


def _values_of(context: Any) -> tuple[Any, ...]:
    found = [getattr(context, name) for name in _DECIMAL]
    found[-1] = [signal for signal, trapped in context.traps.items() if trapped]
    return tuple(found)
