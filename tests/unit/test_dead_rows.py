"""When a VACUUM is worth it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.domain.dead_rows import Keeper, TableRows, strongest, worth


def table(**given: Any) -> TableRows:
    usual: dict[str, Any] = {
        "name": "public.jobs",
        "live": 0,
        "dead": 20_001,
        "vacuumed": None,
        "may": True,
        "busy": False,
    }
    return TableRows(**usual | given)


def test_the_table_with_the_most_dead_rows_comes_first() -> None:
    assert worth([table(name="a"), table(name="b", dead=30_000), table(name="c")]) == table(name="b", dead=30_000)
    assert worth([]) is None


@pytest.mark.parametrize(
    "given",
    [
        {"dead": 20_000},
        {"live": 1_000_000},  # a share of them may be dead
        {"may": False},
        {"busy": True},
        {"vacuumed": 299.0},  # the server's own may be about to begin
    ],
)
def test_there_is_none_where_it_does_not_pay_or_is_not_ours_to_make(given: dict[str, Any]) -> None:
    assert worth([table(**given)]) is None
    assert worth([table(vacuumed=301.0)]) is not None


def test_what_keeps_dead_rows_is_long_by_its_age_or_by_the_transactions_since() -> None:
    assert not Keeper("transaction", "pid 1", 59.0, 10**6).long
    assert Keeper("transaction", "pid 1", 61.0, 1).long
    assert Keeper("replication slot", "a", None, 100_001).long
    assert not Keeper("replication slot", "a", None, 100_000).long
    keepers = [Keeper("transaction", "pid 1", 5.0, 10), Keeper("replication slot", "a", None, 11)]
    assert strongest(keepers) == keepers[1]
    assert strongest([]) is None
