"""What operators set and supervisors obey."""

from __future__ import annotations

from supervisor.domain.job import shown
from supervisor.store.base import ControlState
from supervisor.store.sql.connection import Connection

_DRAINED = "drained:"  # and the host: keys of job_meta


class SqlControls:
    """Implements `store.base.Controls`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def current(self) -> ControlState:
        rows = self._connection.rows(self._queries.controls)
        return ControlState(
            paused=frozenset(shown(name) for kind, name, _ in rows if kind == "paused"),
            sizes={shown(name): value for kind, name, value in rows if kind == "workers"},
            reloads=sum(value for kind, _, value in rows if kind == "reload"),
            drained=frozenset(shown(name) for kind, name, _ in rows if kind == "drained"),
        )

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        rows = self._connection.rows(self._queries.cancels, {"supervisor": supervisor, "limit": limit})
        return [(job, token, owner) for job, token, owner in rows]

    def pause(self, type: str, now: float) -> None:
        self._connection.apply(self._queries.set_control, {"kind": "paused", "name": type, "value": 1, "now": now})

    def resume(self, type: str) -> bool:
        return bool(self._connection.apply(self._queries.clear_control, {"kind": "paused", "name": type}))

    def scale(self, pool: str, workers: int | None, now: float) -> None:
        if workers is None:
            self._connection.apply(self._queries.clear_control, {"kind": "workers", "name": pool})
        else:
            control = {"kind": "workers", "name": pool, "value": workers, "now": now}
            self._connection.apply(self._queries.set_control, control)

    def request_reload(self, now: float) -> None:
        self._connection.apply(self._queries.bump_reload, {"now": now})

    def drain(self, host: str, now: float) -> bool:
        drained = {"key": f"{_DRAINED}{host}", "value": str(now)}
        return bool(self._connection.apply(self._queries.insert_meta, drained))

    def undrain(self, host: str) -> bool:
        return bool(self._connection.apply(self._queries.delete_meta, {"key": f"{_DRAINED}{host}"}))
