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
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

Difference = tuple[str, Callable[[], object]]

# Imported by name: restoring must not use what a handler has replaced.
_get_trace, _get_profile, _set_trace, _set_profile = sys.gettrace, sys.getprofile, sys.settrace, sys.setprofile
_get_switch, _set_switch = sys.getswitchinterval, sys.setswitchinterval
_get_digits, _set_digits = sys.get_int_max_str_digits, sys.set_int_max_str_digits
_get_threshold, _set_threshold = gc.get_threshold, gc.set_threshold
_running_loop, _set_running_loop = asyncio._get_running_loop, asyncio._set_running_loop
_tzset = time.tzset

_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")


class Value(NamedTuple):
    """Something that jobs must find unchanged. `put` restores it, from what `get` has returned, or raises OSError."""

    what: str
    get: Callable[[], Any]
    put: Callable[[Any], object]


Recorded = list[tuple[Value, Any]]


def record(values: Iterable[Value]) -> Recorded:
    return [(value, value.get()) for value in values]


def differences(values: Recorded) -> Iterator[Difference]:
    for (what, get, put), before in values:
        if get() != before:
            yield what, partial(put, before)


def _collect(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


def _set_hooks(hooks: tuple[Any, Any]) -> None:
    threading.settrace(hooks[0])
    threading.setprofile(hooks[1])


def _logging_disabled() -> int:
    module = sys.modules.get("logging")
    return 0 if module is None else module.root.manager.disable


def _disable_logging(level: int) -> None:
    sys.modules["logging"].disable(level)


_VALUES = (
    Value("garbage collection", gc.isenabled, _collect),
    Value("the thresholds of garbage collection", _get_threshold, lambda threshold: _set_threshold(*threshold)),
    Value("the interval of thread switches", _get_switch, _set_switch),
    Value("the maximum number of digits", _get_digits, _set_digits),
    Value("the time zone", lambda: time.tzname, lambda _: _tzset()),
    Value("the trace function of threads", lambda: (threading.gettrace(), threading.getprofile()), _set_hooks),
    Value("logging.disable", _logging_disabled, _disable_logging),
)


class InterpreterState:
    """The state at the time this is created."""

    def __init__(self) -> None:
        self._lists = [
            _List("sys.meta_path", sys, "meta_path"),
            _List("sys.path_hooks", sys, "path_hooks"),
            _List("the filters of warnings", warnings, "filters"),
        ]
        self._values = record(_VALUES)
        self._trace, self._profile = _get_trace(), _get_profile()
        self._names = list(sys.modules)
        self._modules = list(map(sys.modules.get, self._names))
        self._table = sys.modules
        self._decimal = _decimal_context()

    def differences(self) -> Iterator[Difference]:
        """What a quick check shows. The environment must be restored first: the time zone comes from there."""
        if _running_loop() is not None:
            yield "the running event loop", partial(_set_running_loop, None)
        yield from differences(self._values)
        for items in self._lists:
            if items.differs():
                yield items.what, items.put_back
        if _get_trace() is not self._trace:
            yield "the trace function", partial(_set_trace, self._trace)
        if _get_profile() is not self._profile:
            yield "the profile function", partial(_set_profile, self._profile)
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
