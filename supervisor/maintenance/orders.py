"""What a supervisor tells its maintainer when it starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from supervisor.domain.alerts import Alert
from supervisor.domain.limits import Limits
from supervisor.domain.schedule import Schedule
from supervisor.domain.settlement import FollowUps
from supervisor.store.base import JobSelector, SupervisorRecord


class PoolOrders(NamedTuple):
    """What concerns one pool; times are seconds. `wake` is the eventfd on which its idle workers sleep. Its failed jobs
    are retried `redrive_every` seconds after the failure (0: never), each at most `redrive_times` times.
    """

    wanted: JobSelector
    wake: int
    lock_time: float
    heartbeat_timeout: float
    redrive_every: float
    redrive_times: int


class Orders(NamedTuple):
    """The instructions for one maintainer. Retentions are seconds, None means forever.

    `leaving` are pools that a reload has removed: their workers get no more jobs, but finish the ones they have.
    `schedule_of` makes a schedule of a name and the keys that it has in the database.
    """

    record: SupervisorRecord
    pools: Mapping[str, PoolOrders]
    leaving: Mapping[str, PoolOrders]
    keep_done: float | None
    keep_failed: float | None
    schedules: tuple[Schedule, ...]
    schedule_of: Callable[[str, Mapping[str, Any]], Schedule]
    alerts: tuple[Alert, ...]
    limits: Mapping[str, Limits]
    burst: bool
    since: float  # Unix seconds: when the supervisor started
    follow_ups: Mapping[str, FollowUps]  # by type
