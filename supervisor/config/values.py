"""What a value may be, and a table of the file checked key by key.

A check returns the value to use. It raises ValueError with the end of a sentence that starts with the key, or Faults
for parts of the value. They are plain functions: every command reads the configuration, and a validation library takes
longer to import than most commands take to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

from supervisor.config.lines import Key as Way
from supervisor.config.problems import Report, shown

# What a value may be: checks that return the value to use, or say what is wrong with it.
#
# A check raises ValueError with the end of a sentence that starts with the key, or Faults for parts of the value. They
# are plain functions: every command reads the configuration, and a validation library takes longer to import than most
# commands take to run.

_Value = TypeVar("_Value")

Check = Callable[[Any], _Value]

# What a value must be, as the end of a sentence that starts with its key. The HTTP API uses them for its fields, too.
MUST_BE_TEXT = 'must be text in quotes, like "text"'
MUST_BE_BOOLEAN = "must be true or false"
MUST_BE_WHOLE = "must be a whole number"
MUST_BE_NUMBER = "must be a number"
MUST_BE_FINITE = "must be a finite number"
MUST_BE_LIST = 'must be a list, like ["a", "b"]'
MUST_BE_ONE_OF = "must be {}"
MUST_BE_AT_LEAST = "must be at least {}"
MUST_BE_AT_MOST = "must be at most {}"


class Faults(ValueError):
    """Parts of a value that are wrong: the way from the value to each, and what is wrong."""

    def __init__(self, found: Sequence[tuple[Way, str]]) -> None:
        super().__init__(found)
        self.found = found


class Key(Generic[_Value]):
    """A key of a table: the check of its value, and the value without it."""

    def __init__(self, check: Check[_Value], default: _Value) -> None:
        self.check = check
        self.default = default
        self.name = ""

    def __set_name__(self, owner: type[Table], name: str) -> None:
        self.name = name
        owner.keys = {**owner.keys, name: self}

    @overload
    def __get__(self, table: None, owner: type[Table]) -> Key[_Value]: ...
    @overload
    def __get__(self, table: Table, owner: type[Table]) -> _Value: ...
    def __get__(self, table: Table | None, owner: type[Table]) -> Key[_Value] | _Value:
        if table is None:
            return self
        value: _Value = table.written.get(self.name, self.default)
        return value


class Inner(Key[Mapping[str, Any]]):
    """A key whose value is a table of its own."""

    def __init__(self, shape: type[Table]) -> None:
        super().__init__(_table, {})
        self.shape = shape


class Table:
    """A table of the file: the valid values written in it, and the defaults of its other keys."""

    keys: ClassVar[Mapping[str, Key[Any]]] = {}

    def __init__(self, written: Mapping[str, Any]) -> None:
        self.written = written


def anything(value: Any) -> Any:
    return value


def boolean(value: Any) -> bool:
    return _of_kind(value, bool, MUST_BE_BOOLEAN)


@overload
def whole(least: int, most: int) -> Check[int]: ...
@overload
def whole(least: int, most: int, *, auto: Literal[True]) -> Check[int | None]: ...
def whole(least: int, most: int, *, auto: bool = False) -> Check[Any]:
    """With `auto` it may also be "auto", which becomes None."""

    def check(value: Any) -> int | None:
        if auto and value == "auto":
            return None
        number = isinstance(value, int) and not isinstance(value, bool)
        if auto and not (number and least <= value <= most):
            raise _refused(f'must be "auto" or a whole number from {least} to {most}', value)
        if not number:
            raise _refused(MUST_BE_WHOLE, value)
        return int(_within(value, least, most))

    return check


def number(least: float, most: float) -> Check[float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refused(MUST_BE_NUMBER, value)
        if isinstance(value, float) and not math.isfinite(value):  # any whole number is finite, and may be too long
            raise _refused(MUST_BE_FINITE, value)
        return float(_within(value, least, most))

    return check


def text(rule: Check[str] = str) -> Check[str]:
    def check(value: Any) -> str:
        return rule(_of_kind(value, str, MUST_BE_TEXT))

    return check


def one_of(*words: str) -> Check[Any]:
    expected = ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise _refused(MUST_BE_ONE_OF.format(expected), value)
        return value

    return check


def listed(item: Check[_Value], *rules: Check[list[_Value]]) -> Check[list[_Value]]:
    """A list; its `rules` apply if every item is valid."""

    def check(value: Any) -> list[_Value]:
        values, found = [], []
        for index, each in enumerate(_of_kind(value, list, MUST_BE_LIST)):
            try:
                values.append(item(each))
            except ValueError as error:
                found.append(((index,), str(error)))
        if found:
            raise Faults(found)
        for rule in rules:
            values = rule(values)
        return values

    return check


def named(name: Check[str], value: Check[_Value]) -> Check[dict[str, _Value]]:
    """A table with names of the user's own."""

    def check(table: Any) -> dict[str, _Value]:
        values, found = {}, []
        for key, each in _table(table).items():
            try:
                name(key)
            except ValueError as error:
                found.append(((key,), str(error)))
            try:
                values[key] = value(each)
            except ValueError as error:
                found.append(((key,), str(error)))
        if found:
            raise Faults(found)
        return values

    return check


def _table(value: Any) -> Mapping[str, Any]:
    return _of_kind(value, dict, "must be a table, like { name = … }")


def _of_kind(value: Any, kind: type[_Value], must: str) -> _Value:
    if not isinstance(value, kind):
        raise _refused(must, value)
    return value


def _within(value: Any, least: Any, most: Any) -> Any:
    if value < least:
        raise _refused(MUST_BE_AT_LEAST.format(least), value)
    if value > most:
        raise _refused(MUST_BE_AT_MOST.format(most), value)
    return value


def _refused(must: str, value: Any) -> ValueError:
    return ValueError(f"{must}, not {shown(value)}")


@dataclass(frozen=True, slots=True)
class Checked:
    """The keys of one table: the valid ones with their values, and the names of the others."""

    at: Way
    values: Mapping[str, Any] = field(default_factory=dict)
    faulty: frozenset[str] = frozenset()


def checked(shape: type[Table], raw: object, at: Way, report: Report) -> Checked:
    """Check one table against its shape, key by key: one problem leaves the other keys usable."""
    if not isinstance(raw, dict):
        report.add(at, f"must be a table, not {shown(raw)}")
        return Checked(at)
    values: dict[str, Any] = {}
    faulty: set[str] = set()
    for name, value in raw.items():
        way = (*at, name)
        key = shape.keys.get(name)
        if key is None:
            report.add_unknown(way, shape.keys)
            faulty.add(name)
            continue
        try:
            values[name] = key.check(value)
        except Faults as error:
            for rest, problem in error.found:
                report.add((*way, *rest), problem)
            faulty.add(name)
        except ValueError as error:
            report.add(way, str(error))
            faulty.add(name)
        else:
            if isinstance(key, Inner):
                inner = checked(key.shape, value, way, report)
                values[name] = inner.values
                if inner.faulty:
                    del values[name]
                    faulty.add(name)
    return Checked(at, values, frozenset(faulty))
