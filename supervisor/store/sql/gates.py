"""The gates: the limits of types, and the jobs that are held until they may run. Triggers of the schema decide; here is
what no trigger can do: limits that change, and jobs whose time comes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from supervisor.domain.limits import Limits
from supervisor.store.sql.connection import Concern, Row, RowRefused, Transaction, change_each, quarantine

_SLICE = 500  # rows in one transaction


class LimitView(NamedTuple):
    """The limits of a type, how many of its jobs are held, and whether an operator has set them."""

    type: str
    limits: Limits
    chosen: bool
    next_at: float = 0.0
    failures: int = 0

    @property
    def is_open(self) -> bool:
        """Whether its breaker is: after a pause, one job at a time may start."""
        return self.limits.max_failures is not None and self.failures >= self.limits.max_failures


class Gates(Concern):
    def limits(self) -> list[LimitView]:
        return [
            LimitView(row[0], Limits(*row[1:12])._replace(fair=bool(row[8])), bool(row[14]), row[12], row[13])
            for row in self._connection.rows(self._queries.limits)
        ]

    def configure(self, limits: Mapping[str, Limits], types: Sequence[str], now: float) -> list[str]:
        """Let these be the limits of these types, except where an operator has chosen others. Returns the types whose
        limits have changed: a sweep lets their jobs pass the gates.
        """
        before = {view.type: view for view in self.limits()}
        changed = []
        for type_ in types:
            there, wanted = before.get(type_), limits.get(type_)
            if (there is not None and there.chosen) or (None if there is None else there.limits) == wanted:
                continue
            self._write(type_, wanted, now, chosen=False)
            changed.append(type_)
        return changed

    def choose(self, type_: str, limits: Limits | None, now: float, *, chosen: bool = True) -> None:
        """Let these be the limits of a type; if an operator has `chosen` them, whatever the configuration says."""
        self._write(type_, limits, now, chosen=chosen)
        self.sweep(now)

    def _write(self, type_: str, limits: Limits | None, now: float, *, chosen: bool) -> None:
        """No job waits longer than it would by the new limits, except for a breaker that is open."""
        self._connection.pass_gates()
        saved_up = 0.0 if limits is None else limits.key_burst * (limits.key_interval or 0.0)
        was_fair = any(view.limits.fair for view in self.limits() if view.type == type_)
        with self._connection.write() as raw:
            if "lock_gate" in self._queries.statements:
                raw.execute(self._queries.lock_gate, {"type": type_})
            raw.execute(self._queries.admitted_from_now, {"type": type_, "now": now})
            if limits is None:
                raw.execute(self._queries.drop_limit, {"type": type_})
            else:
                row = limits._asdict() | {"type": type_, "fair": int(limits.fair), "chosen": int(chosen), "now": now}
                raw.execute(self._queries.set_limit, row)
                if limits.fair and not was_fair:
                    raw.execute(self._queries.give_turns, {"type": type_})
                    raw.execute(self._queries.last_turns, {"type": type_})
            raw.execute(self._queries.keys_from_now, {"type": type_, "now": now + saved_up})
        if limits is None:
            self._pass_again(type_)

    def _try_gates(self, heads: Sequence[int]) -> int:
        """How many jobs this lets pass. What others let pass meanwhile does not count: a sweep would not end."""
        ids = {"ids": json.dumps(heads)}
        with self._connection.write() as raw:
            if "try_gates" in self._queries.statements:
                return int(raw.execute(self._queries.try_gates, ids).fetchall()[0][0])
            [(before,)] = raw.execute(self._queries.count_heads, ids).fetchall()
            raw.executemany(self._queries.try_gate, [{"id": head} for head in heads])
            [(after,)] = raw.execute(self._queries.count_heads, ids).fetchall()
        return int(before) - int(after)

    def _pass_again(self, type_: str, until: float = inf) -> bool:
        """Pending jobs pass the gates again: those from before there was a limit, and those that a larger one let pass.
        Until all have, the limit counts as not applied, so that it is continued later, also after a kill.
        """
        marked = _SLICE
        while marked >= _SLICE:
            with self._connection.write() as raw:
                marked = raw.execute(self._queries.mark_pending, {"type": type_, "limit": _SLICE}).rowcount
                raw.execute(self._queries.hold_marked, {"type": type_})
            if marked >= _SLICE and time.monotonic() >= until:
                return False
        self._connection.apply(self._queries.limit_applied, {"type": type_})
        return True

    def admit_due(self, now: float) -> int:
        """Let jobs whose time has come go on to the next gate; returns how many, at most one slice."""
        which = {"now": now, "limit": _SLICE}
        known = [self._queries.statements.get(name) for name in ("admit_due", "open_keys")]
        passed = self._connection.pass_gates()
        return passed + sum(self._connection.apply(statement, which) for statement in known if statement)

    def cancel_expired(self, now: float) -> int:
        """Cancel jobs that have not started before they expired; returns how many have ended, at most one slice."""

        def cancel(raw: Transaction, jobs: Sequence[Row]) -> int:
            ids = json.dumps([job for job, _ in jobs])
            return raw.execute(self._queries.cancel_expired, {"ids": ids, "now": now}).rowcount

        found = self._connection.rows(self._queries.too_late, {"now": now, "limit": _SLICE})
        ended, refused = change_each(self._connection, found, cancel) if found else (0, [])
        ended += sum(quarantine(self._connection, job, why, now, token=token) for (job, token), why in refused)
        if refused and not ended:
            raise RowRefused(f"job {refused[0][0][0]} has expired, and cannot be changed: {refused[0][1]}")
        return ended

    def count_from(self, now: float) -> None:
        """The clock was set back: rates count from now, and pauses are over."""
        self._connection.pass_gates()
        for statement in (self._queries.limits_from_now, self._queries.keys_from_now, self._queries.admitted_from_now):
            self._connection.apply(statement, {"now": now, "type": None})

    def next_due(self) -> tuple[float, float]:
        """When the time of the next held job comes, and when the next job expires."""
        due, expires = self._connection.row(self._queries.next_due) or (None, None)
        return inf if due is None else float(due), inf if expires is None else float(expires)

    def sweep(self, now: float, bound: float = inf) -> tuple[int, bool]:
        """Try the first jobs of every gate again, as long as one is admitted: rows may have been deleted by hand, or
        limits changed; one who changed a limit may have been killed. Returns how many were admitted, and whether it is
        to be continued, since it has taken `bound` seconds.
        """
        if self._connection.row(self._queries.any_gates) is None:
            return 0, False
        self._connection.pass_gates()
        until = time.monotonic() + bound
        admitted, passed = 0, 1
        for (type_,) in self._connection.rows(self._queries.unapplied):
            if not self._pass_again(type_, until):
                return 0, True
        while self.admit_due(now):
            if time.monotonic() >= until:
                return 0, True
        while passed:
            heads = [row[0] for row in self._connection.rows(self._queries.gate_heads, {"limit": _SLICE})]
            passed = sum(self._try_gates(heads[at : at + _SLICE]) for at in range(0, len(heads), _SLICE))
            admitted += passed
            if passed and time.monotonic() >= until:
                return admitted, True
        if "sweep_edges" in self._queries.statements:
            self._connection.apply(self._queries.sweep_edges, {})
        self._connection.apply(self._queries.forget_keys, {"now": now})
        with suppress(RowRefused):  # a rule of the application's rolls back what follows from it
            self._connection.apply(self._queries.sweep_batches, {})
        self.admit_due(now)
        return admitted, False
