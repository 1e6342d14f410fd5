"""Arrays of numbers in the server's binary form."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from supervisor.store.postgres import statements
from supervisor.store.postgres.statements import Floats, Integers
from tests.postgres_server import Databases


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (Integers(), "bigint"),
        (Integers([7]), "bigint"),
        (Integers([-(2**63), -1, 0, 2**63 - 1]), "bigint"),
        (Integers(range(1000)), "bigint"),
        (Floats(), "double precision"),
        (Floats([0.1, -0.0, 1e308, 5e-324, float("inf")]), "double precision"),
        (Floats([1, 2.5]), "double precision"),
    ],
)
def test_the_server_reads_what_was_meant(postgres: Databases, values: tuple[Any, ...], type_: str) -> None:
    with psycopg.connect(postgres.fresh_database()) as connection:
        statements.register_arrays(connection)
        row = connection.execute(f"SELECT %s::{type_}[], cardinality(%s), (%s)[1]", [values] * 3).fetchone()
    assert row == (list(values), len(values), values[0] if values else None)
