"""Each statement is compiled once for a connection: with its triggers, that of a claim costs milliseconds."""

from __future__ import annotations

import re
import sqlite3
import time

import pytest

from supervisor.domain.limits import Limits
from supervisor.domain.settlement import done
from supervisor.store.sqlite.inserting import QUERIES
from tests.store.kit import Desk


@pytest.mark.parametrize("limits", [Limits(), Limits(max_running=3)])
@pytest.mark.parametrize("want", [1, 3])
def test_claims_and_settlements_compile_nothing_after_the_first(desk: Desk, limits: Limits, want: int) -> None:
    compiled: list[object] = []
    desk.maintenance.gates.choose("tag", limits, time.time())
    for _ in range(5 * want):
        desk.put()
    desk.maintenance.gates.admit_due(time.time())

    def turn() -> None:
        claims = desk.claim(want=want, now=time.time())
        assert len(claims) == want
        desk.settle(*(done(claim, None) for claim in claims), now=time.time())

    desk.claims._connection.raw.set_authorizer(lambda *what: compiled.append(what) or sqlite3.SQLITE_OK)
    turn()
    turn()
    assert compiled  # each statement has been compiled

    compiled.clear()
    turn()

    assert compiled == []


class _Ones(dict[str, int]):
    """Any named parameter."""

    def __missing__(self, name: str) -> int:
        return 1


def test_no_statement_is_compiled_anew_because_of_its_parameters(desk: Desk) -> None:
    """SQLite does so where their values may change the plan. EXPLAIN compiles a statement, and runs nothing."""
    raw = desk.claims._connection.raw
    compiled: list[object] = []
    anew = set()
    raw.set_authorizer(lambda *what: compiled.append(what) or sqlite3.SQLITE_OK)

    for name, statement in QUERIES.statements.items():
        numbers = [int(number) for number in re.findall(r"\?(\d+)", statement)]
        for _ in range(2):
            compiled.clear()
            given = [1] * max(numbers) if numbers else [1] * statement.count("?") or _Ones()
            raw.execute(f"EXPLAIN {statement}", given).fetchall()
        if compiled:
            anew.add(name)

    assert anew == {"failed_jobs"}  # for alerts, now and then
