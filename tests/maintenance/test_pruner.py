"""How quickly finished jobs past their retention go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from supervisor.maintenance.prune_and_redrive import Pruner


class Table:
    """Of which each look deletes so many rows."""

    def __init__(self, deleted: Iterable[int]) -> None:
        self._deleted = iter(deleted)

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        return next(self._deleted), after + limit


def test_a_job_stays_for_a_moment_for_those_who_wait_for_it() -> None:
    class Bounds:
        def prune(self, after: int, limit: int, *before: float) -> tuple[int, int]:
            bounds.append(before)
            return 0, 0

    bounds: list[tuple[float, ...]] = []
    table: Any = Bounds()
    for done, failed in ((0.0, 0.0), (3600.0, None)):
        Pruner(table, done, failed).run(10_000.0)
    assert bounds == [(9_990.0, 9_990.0), (6_400.0, 0.0)]


def test_it_goes_on_soon_while_there_is_something_to_delete() -> None:
    table: Any = Table([2000, 1, 0, 0])
    pruner = Pruner(table, 60.0, None)
    nexts = []
    for now in (1000.0, 1001.0, 1002.0, 1003.0):
        pruner.run(now)
        due = pruner.next_at(now)
        nexts.append(due and due - now)
    soon = nexts[0]
    assert soon is not None
    assert 0.0 < soon < 1.0, "2,000 rows in 30 seconds are less than a busy application finishes"
    assert nexts[1:] == [nexts[1], None, None]
    assert nexts[1] is not None
