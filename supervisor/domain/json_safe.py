"""Values from rows, which any program may have written, converted to values that JSON can represent."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

_DEEPEST = 100  # levels of a stored value that are shown: many parsers accept no more than twice as many


def json_safe(value: Any, depth: int = 0) -> Any:
    """The same value without bytes, infinities, deep nesting, or text that UTF-8 cannot encode."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return value
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # one of our own values
    if isinstance(value, dict):
        return {_text(str(key)): json_safe(item, depth + 1) for key, item in value.items()}
    items = sorted(value) if isinstance(value, (set, frozenset)) else value
    return [json_safe(item, depth + 1) for item in items]


def _text(value: str) -> str:
    """Without lone surrogates, which JSON's \\u escapes can produce and UTF-8 cannot encode."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value
