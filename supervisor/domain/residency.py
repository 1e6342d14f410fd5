"""Since when a pool has its place in memory, and since when it is idle or without one."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.domain.memory import Grant


class Residency(NamedTuple):
    """Times are monotonic seconds. `resident`: it has workers, or is to have them again after their deaths; `starting`:
    none of them has been ready yet. `loaded_at` is when the first one was.
    """

    resident: bool = False
    starting: bool = False
    loaded_at: float | None = None
    absent_since: float | None = None
    idle_since: float | None = None

    def seen(self, now: float, *, wanted: int, staying: int, ready: bool, idle: bool) -> Residency:
        """Before a decision. Scaling alone asks for `wanted` workers; `staying` ones have not been told to leave,
        and at least one of them may be `ready`.
        """
        idle_since = (now if self.idle_since is None else self.idle_since) if idle else None
        found = self._replace(idle_since=idle_since)
        if staying and not found.resident:
            found = found._loaded(now)
        if ready and found.starting:
            return found._replace(starting=False, loaded_at=now)
        return found._absent(now) if found.resident and not (staying or wanted) else found

    def decided(self, now: float, grant: Grant) -> Residency:
        """After it."""
        if grant.unloaded and self.resident:
            return self._absent(now)
        return self._loaded(now) if any(grant.start.values()) and not self.resident else self

    def _loaded(self, now: float) -> Residency:
        return self._replace(resident=True, starting=True, loaded_at=now)

    def _absent(self, now: float) -> Residency:
        return self._replace(resident=False, starting=False, absent_since=now)
