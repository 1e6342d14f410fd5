"""Supervisors and workers, by the registry's rows: whether they are alive, and what operators have set for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

from supervisor.domain.job import shown
from supervisor.domain.text import text_of
from supervisor.domain.values import known_time
from supervisor.store.ownership import Ownership, SupervisorRecord
from supervisor.store.sql.connection import Concern, Connection


class Lease(NamedTuple):
    """A supervisor's lease: the seconds that are left of it, below 0 if it has ended, and what it has posted with it,
    as JSON, for other hosts.
    """

    left: float
    posted: str


class WorkerRecord(NamedTuple):
    """One incarnation of a worker. `policy` is JSON: how its jobs are settled if it is found dead.

    `pid_started` is when the kernel started its process, in clock ticks since the boot; None where nobody knows.
    """

    incarnation: str
    supervisor: str
    pool: str
    name: str
    pid: int
    slot: int
    policy: str
    started_at: float
    pid_started: int | None = None


class GoneView(NamedTuple):
    """A host whose last supervisor has gone: its pid, when that was noticed (Unix seconds), and whether it had stopped
    by itself; otherwise it died, or was cut off.
    """

    host: str
    pid: int
    at: float
    stopped: bool


_GONE = "gone:"  # and a host: a key of job_meta
_DAY = 86400.0  # seconds

Record = TypeVar("Record", SupervisorRecord, WorkerRecord)


class Registry(Concern):
    """The supervisors and workers of this database. `registered` is the id of the supervisor that was registered here,
    or empty.
    """

    def __init__(self, connection: Connection, ownership: Ownership) -> None:
        super().__init__(connection)
        self._ownership = ownership
        self.registered = ""

    def supervisors(self) -> list[SupervisorRecord]:
        """The running ones, and dead ones that have not been recovered yet."""
        return [_started(SupervisorRecord(*row)) for row in self._connection.rows(self._queries.supervisors)]

    def register(self, supervisor: SupervisorRecord) -> None:
        with self._connection.write() as raw:
            raw.execute(self._queries.register_supervisor, supervisor._asdict())
            raw.execute(self._queries.delete_meta, {"key": f"{_GONE}{supervisor.host}"})
        self.registered = supervisor.id

    def forget(self, supervisor: str, now: float) -> None:
        """Remove a supervisor that has ended; the claims of its workers must have been settled. Its host counts as gone
        from then on, unless another supervisor is there.
        """
        own = supervisor == self.registered
        with self._connection.write() as raw:
            for host, pid in raw.execute(self._queries.forget_supervisor, {"id": supervisor, "own": own}).fetchall():
                value = f"{now:.3f} {pid} {'stopped' if own else 'ended'}"
                raw.execute(self._queries.set_meta, {"key": f"{_GONE}{host}", "value": value})
            for key, value in raw.execute(self._queries.gone).fetchall():
                if (one := _gone(key, value)) is not None and one.at < now - _DAY:
                    raw.execute(self._queries.delete_meta, {"key": key})
        self._ownership.remove_files(supervisor, (row[0] for row in self._connection.rows(self._queries.supervisors)))

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        """Whether its process is running or, on another host, has a lease; None if this machine cannot tell."""
        return self._ownership.lives(supervisor)

    def declare_dead(self, supervisor: SupervisorRecord) -> None:
        """Its lease ends now if its process has certainly ended; otherwise when it ends by itself."""

    def renew(self, supervisor: str, posted: str | None) -> float | None:
        """Renew a lease and post something for other hosts; None: what was posted still holds.

        Returns the time by the clock that all hosts share; None if the supervisor is not registered any more.
        """
        return None

    def leases(self) -> Mapping[str, Lease]:
        """The leases of all supervisors, by id; empty if none is needed."""
        return {}

    def workers_of(self, supervisor: str) -> list[WorkerRecord]:
        rows = self._connection.rows(self._queries.workers_of, {"supervisor": supervisor})
        return [_started(WorkerRecord(*row)) for row in rows]

    def worker(self, incarnation: str) -> WorkerRecord | None:
        row = self._connection.row(self._queries.worker, {"incarnation": incarnation})
        return None if row is None else _started(WorkerRecord(*row))

    def gone(self, now: float) -> list[GoneView]:
        """The hosts that had supervisors within the last day and have none now, the latest first."""
        here = {text_of(one.host) for one in self.supervisors()}
        found = [_gone(*row) for row in self._connection.rows(self._queries.gone)]
        left = [one for one in found if one is not None and one.host not in here and one.at > now - _DAY]
        return sorted(left, key=lambda one: -one.at)


def _started(record: Record) -> Record:
    """A row; what is no time, such as infinity, is 0."""
    return record._replace(started_at=known_time(record.started_at) or 0.0)


def _gone(key: str, value: str) -> GoneView | None:
    """None for what is not a row of ours."""
    try:
        at, pid, stopped = value.split()
        return GoneView(text_of(key.removeprefix(_GONE)), int(pid), float(at), stopped == "stopped")
    except ValueError:
        return None


# What operators set


class HostControl(NamedTuple):
    """What operators have set for the hosts that match a pattern alone: a pool has so many `workers`."""

    host: str
    pool: str
    workers: int


class ControlState(NamedTuple):
    """What operators have set: paused types, pool sizes by name, the number of reloads requested, drained hosts,
    `on_hosts` the sizes that hold on some hosts, and how often `schedules` were changed at run time.
    """

    paused: frozenset[str]
    sizes: Mapping[str, int]
    reloads: int
    drained: frozenset[str] = frozenset()
    on_hosts: tuple[HostControl, ...] = ()
    schedules: int = 0

    def size_on(self, pool: str, host: str) -> int | None:
        """The size that was set for the host itself, else for the longest pattern that it matches, else everywhere."""
        matching = [one for one in self.on_hosts if one.pool == pool and fnmatchcase(host, one.host)]
        best = max(matching, key=lambda one: (one.host == host, len(one.host), one.host), default=None)
        return self.sizes.get(pool) if best is None else best.workers

    def hosts_of(self, pool: str) -> list[str]:
        """The hosts, or patterns of hosts, for which a size was set."""
        return sorted(one.host for one in self.on_hosts if one.pool == pool)


_DRAINED = "drained:"  # and the host: keys of job_meta
_ON_HOST = "host:"  # and a list, as JSON: "workers", the host, the pool


class Controls(Concern):
    """What operators set, and supervisors obey: paused types, pool sizes, reloads, cancellations."""

    def current(self) -> ControlState:
        rows = self._connection.rows(self._queries.controls)
        return ControlState(
            paused=frozenset(shown(name) for kind, name, _ in rows if kind == "paused"),
            sizes={shown(name): value for kind, name, value in rows if kind == "workers"},
            reloads=sum(value for kind, _, value in rows if kind == "reload"),
            drained=frozenset(shown(name) for kind, name, _ in rows if kind == "drained"),
            on_hosts=tuple(one for kind, name, value in rows if kind == "host" if (one := _on_host(name, value))),
            schedules=sum(value for kind, _, value in rows if kind == "schedules"),
        )

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        """(job id, token, owner) of jobs that this supervisor's workers run and that are to be cancelled."""
        rows = self._connection.rows(self._queries.cancels, {"supervisor": supervisor, "limit": limit})
        return [(job, token, owner) for job, token, owner in rows]

    def pause(self, type: str, now: float) -> None:
        self._connection.apply(self._queries.set_control, {"kind": "paused", "name": type, "value": 1, "now": now})

    def resume(self, type: str) -> bool:
        """Returns whether it was paused."""
        return bool(self._connection.apply(self._queries.clear_control, {"kind": "paused", "name": type}))

    def scale(self, pool: str, workers: int | None, now: float, host: str = "") -> None:
        """Fix a pool's size; None returns it to automatic scaling. Everywhere, in the place of what was set for single
        hosts; or on the hosts whose name matches `host`, where None leaves what was set for others.
        """
        hosts = [host] if host else self.current().hosts_of(pool)
        with self._connection.write() as raw:
            for one in hosts:
                raw.execute(self._queries.delete_meta, {"key": _key(one, pool)})
            if host and workers is not None:
                raw.execute(self._queries.set_meta, {"key": _key(host, pool), "value": str(workers)})
            elif not host and workers is not None:
                control = {"kind": "workers", "name": pool, "value": workers, "now": now}
                raw.execute(self._queries.set_control, control)
            elif not host:
                raw.execute(self._queries.clear_control, {"kind": "workers", "name": pool})

    def request_reload(self, now: float) -> None:
        self._connection.apply(self._queries.bump_control, {"kind": "reload", "now": now})

    def drain(self, host: str, now: float) -> bool:
        """From now on its supervisors claim nothing. Returns whether that is a change."""
        drained = {"key": f"{_DRAINED}{host}", "value": str(now)}
        return bool(self._connection.apply(self._queries.insert_meta, drained))

    def undrain(self, host: str) -> bool:
        """They may claim again. Returns whether that is a change."""
        return bool(self._connection.apply(self._queries.delete_meta, {"key": f"{_DRAINED}{host}"}))


def _key(host: str, pool: str) -> str:
    return _ON_HOST + json.dumps(["workers", host, pool])


def _on_host(key: str, value: int) -> HostControl | None:
    """None if another program has written it."""
    try:
        kind, host, pool = json.loads(shown(key))
    except (ValueError, TypeError):
        return None
    return HostControl(str(host), str(pool), value) if kind == "workers" else None
