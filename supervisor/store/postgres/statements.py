"""The statements of this engine, and arrays, as the driver takes them."""

from __future__ import annotations

import re
import struct
from itertools import chain, repeat
from typing import Any

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from supervisor.store.sql.connection import Queries, of_engine

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_NUMBERED = re.compile(r"\?(\d)")


def for_driver(sql: str) -> str:
    """`:name` becomes `%(name)s`, and `?1` becomes `%(p1)s`, for parameters given in a tuple; casts stay.

    Without parameters the driver sends a statement as it is: then a percent sign is itself.
    """
    named = _NUMBERED.sub(r"%(p\1)s", _NAMED.sub(r"%(\1)s", sql.replace("%", "%%")))
    return sql if named == sql.replace("%", "%%") else named


def named(parameters: Any) -> Any:
    """The driver has no numbered placeholders: a tuple's items are p1, p2, …"""
    if isinstance(parameters, tuple):
        return {f"p{number}": value for number, value in enumerate(parameters, 1)} or None
    return parameters


QUERIES = Queries({name: for_driver(sql) for name, sql in of_engine("supervisor.store.postgres").statements.items()})


class Integers(tuple[int, ...]):
    """A bigint[] of one dimension, without NULLs."""


class Floats(tuple[float, ...]):
    """A double precision[] of one dimension, without NULLs."""


class _Dumper(Dumper):
    format = Format.BINARY
    element: int  # the type's oid
    code: str  # as in `struct`

    def dump(self, obj: tuple[Any, ...]) -> Buffer | None:
        count = len(obj)
        # Dimensions, whether there are NULLs, the type, the length, the first index; then each value after its length.
        layout = f"!iiIii{f'i{self.code}' * count}"
        return struct.pack(layout, 1, 0, self.element, count, 1, *chain.from_iterable(zip(repeat(8), obj)))


class _IntegersDumper(_Dumper):
    oid, element, code = 1016, 20, "q"


class _FloatsDumper(_Dumper):
    oid, element, code = 1022, 701, "d"


def register_arrays(context: AdaptContext) -> None:
    """Teach a connection both."""
    assert context.adapters is not None
    context.adapters.register_dumper(Integers, _IntegersDumper)
    context.adapters.register_dumper(Floats, _FloatsDumper)
