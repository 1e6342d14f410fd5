"""What operators set and supervisors obey."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from supervisor.domain.job import shown
from supervisor.store.base import ControlState, HostControl
from supervisor.store.sql.connection import Connection

_DRAINED = "drained:"  # and the host: keys of job_meta
_ON_HOST = "host:"  # and a list, as JSON: the kind of control, the host, the type or pool


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
            on_hosts=tuple(one for kind, name, value in rows if kind == "host" if (one := _on_host(name, value))),
        )

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        rows = self._connection.rows(self._queries.cancels, {"supervisor": supervisor, "limit": limit})
        return [(job, token, owner) for job, token, owner in rows]

    def pause(self, type: str, now: float, host: str = "") -> None:
        if host:
            self._connection.apply(self._queries.set_meta, {"key": _key("paused", host, type), "value": "1"})
        else:
            self._connection.apply(self._queries.set_control, {"kind": "paused", "name": type, "value": 1, "now": now})

    def resume(self, type: str, host: str = "") -> bool:
        if host:
            return bool(self._connection.apply(self._queries.delete_meta, {"key": _key("paused", host, type)}))
        return self._everywhere("paused", type, None)

    def scale(self, pool: str, workers: int | None, now: float, host: str = "") -> None:
        if not host:
            control = {"kind": "workers", "name": pool, "value": workers, "now": now}
            self._everywhere("workers", pool, None if workers is None else control)
        elif workers is None:
            self._connection.apply(self._queries.delete_meta, {"key": _key("workers", host, pool)})
        else:
            self._connection.apply(self._queries.set_meta, {"key": _key("workers", host, pool), "value": str(workers)})

    def _everywhere(self, kind: str, name: str, control: Mapping[str, Any] | None) -> bool:
        """In the place of what was set for single hosts. Returns whether there was something."""
        hosts = self.current().hosts_of(kind, name)
        with self._connection.write() as raw:
            changed = [
                raw.execute(self._queries.delete_meta, {"key": _key(kind, host, name)}).rowcount for host in hosts
            ]
            if control is None:
                changed.append(raw.execute(self._queries.clear_control, {"kind": kind, "name": name}).rowcount)
            else:
                raw.execute(self._queries.set_control, control)
        return sum(changed) > 0

    def request_reload(self, now: float) -> None:
        self._connection.apply(self._queries.bump_reload, {"now": now})

    def drain(self, host: str, now: float) -> bool:
        drained = {"key": f"{_DRAINED}{host}", "value": str(now)}
        return bool(self._connection.apply(self._queries.insert_meta, drained))

    def undrain(self, host: str) -> bool:
        return bool(self._connection.apply(self._queries.delete_meta, {"key": f"{_DRAINED}{host}"}))


def _key(kind: str, host: str, name: str) -> str:
    return _ON_HOST + json.dumps([kind, host, name])


def _on_host(told: str, value: int) -> HostControl | None:
    """None if another program has written it."""
    try:
        kind, host, name = json.loads(shown(told))
    except (ValueError, TypeError):
        return None
    return HostControl(kind, str(host), str(name), value) if isinstance(kind, str) else None
