"""Runs of a handler that are no jobs: they show whether a worker can serve before it does."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from supervisor.domain.text import shortened

_SHOWN = 60  # characters of a value in a sentence


class Trial(NamedTuple):
    """`payload` and `expect` are JSON texts; `expect` is None if any result will do. Numbers may differ by
    `tolerance`.
    """

    type: str
    payload: str
    expect: str | None = None
    tolerance: float = 0.0

    def mismatch(self, result: str | None) -> str:
        """Why a result, a JSON text or None, is not what is expected, as a sentence; "" if it is."""
        if self.expect is None:
            return ""
        return _mismatch(json.loads(self.expect), json.loads(result or "null"), self.tolerance, "result")


def _mismatch(expected: Any, found: Any, tolerance: float, where: str) -> str:
    """A result may have keys that are not expected; lists must have the same length."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = next((key for key in expected if key not in found), None)
        if missing is not None:
            return f"{where} has no {shortened(missing, _SHOWN)!r}"
        pairs = [(f"{where}.{shortened(key, _SHOWN)}", each, found[key]) for key, each in expected.items()]
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{where} has {len(found)} elements, not {len(expected)}"
        pairs = [(f"{where}[{at}]", each, found[at]) for at, each in enumerate(expected)]
    else:
        same = _same(expected, found, tolerance)
        return "" if same else f"{where} is {_shown(found)}, not {_shown(expected)}"
    return next((why for at, one, other in pairs if (why := _mismatch(one, other, tolerance, at))), "")


def _same(expected: Any, found: Any, tolerance: float) -> bool:
    if _is_number(expected) and _is_number(found):
        return bool(abs(expected - found) <= tolerance)
    return type(expected) is type(found) and expected == found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), _SHOWN)
