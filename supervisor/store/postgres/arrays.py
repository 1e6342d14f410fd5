"""Arrays of numbers in the server's binary form. As text, each number costs the driver and the server a microsecond."""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import Any

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format


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


def register(context: AdaptContext) -> None:
    """Teach a connection both."""
    assert context.adapters is not None
    context.adapters.register_dumper(Integers, _IntegersDumper)
    context.adapters.register_dumper(Floats, _FloatsDumper)
