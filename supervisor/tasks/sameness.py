"""Whether what comes back from JSON is what was stored."""

from __future__ import annotations

import dataclasses
import datetime
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any


def is_same(one: Any, other: Any) -> bool:
    """Whether they are equal. Aware times are if they are the same instant.

    Python says that times in different zones are never equal in the hour in which the offset of one of them changes.
    So what is unequal is compared part by part.
    """
    if type(one) is not type(other):
        return False
    if one == other:
        return True
    if isinstance(one, datetime.datetime):
        return _instant(one) is not None and _instant(one) == _instant(other)
    if isinstance(one, Mapping):
        return _all_same(_pairs(one), _pairs(other))
    if isinstance(one, (list, tuple, deque)):
        return _all_same(one, other)
    if isinstance(one, AbstractSet):
        return {_comparable(each) for each in one} == {_comparable(each) for each in other}
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if field.compare]
        return _is_compared(one) and all(is_same(getattr(one, name), getattr(other, name)) for name in names)
    if hasattr(type(one), "__pydantic_fields__"):
        parts = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        return all(is_same(getattr(one, name, None), getattr(other, name, None)) for name in parts)
    return False


def _is_compared(value: Any) -> bool:
    """Whether its class compares instances by their fields: not with `eq=False`."""
    return any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])


def _all_same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(is_same, one, other))


def _pairs(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return [*mapping.items()]


def _comparable(value: Any) -> Any:
    if isinstance(value, tuple):
        return (*map(_comparable, value),)
    return (_instant(value) or value) if isinstance(value, datetime.datetime) else value


def _instant(value: datetime.datetime) -> datetime.datetime | None:
    return None if value.utcoffset() is None else value.astimezone(datetime.UTC)
