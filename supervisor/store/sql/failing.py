"""Every named statement is a fail-point, whatever the engine: for tests, see CONTRIBUTING.md.

The statement `settle` offers `settle.before`, `settle` (it has run; a transaction may still be open) and
`settle.committed` (so is the transaction that it was part of; without one, that is at once). An error at the
first means that it has not run, at the second that the transaction is rolled back, at the last that the answer
of the commit was lost. What has no name in queries.sql, such as `begin` and `commit`, offers the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Reach = Callable[[str], None]  # called at a place; may raise what is to happen there


class Passages:
    """What one connection passes, statement by statement. `names` are by the statements' texts, `others` those without
    `.committed`. `in_transaction` tells whether one is open now.
    """

    def __init__(
        self, names: Mapping[str, str], others: Mapping[str, str], reach: Reach, in_transaction: Callable[[], bool]
    ) -> None:
        self._names = names
        self._others = others
        self._reach = reach
        self._in_transaction = in_transaction
        self._uncommitted: list[str] = []

    def run(self, sql: str, execute: Callable[[], object]) -> None:
        """Run a statement, with its fail-points before and after."""
        name, open_before = self._names.get(sql), self._in_transaction()
        place = name or self._others.get(sql)
        if not open_before:
            self._uncommitted = []  # of a transaction that an error has ended
        if place is not None:
            self._reach(f"{place}.before")
        execute()
        if place is not None:
            self._reach(place)
        if name is not None:
            self._uncommitted.append(name)
        if not self._in_transaction():
            self._end(committed=not sql.startswith("ROLLBACK"))

    def _end(self, *, committed: bool) -> None:
        """No transaction is open any more."""
        ran, self._uncommitted = dict.fromkeys(self._uncommitted), []
        for name in ran if committed else ():
            self._reach(f"{name}.committed")
