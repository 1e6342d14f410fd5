"""The settings that the program uses, and in them the keys that `supervisor.toml` may have: what each key may be, and
its value where it is not written. Durations are seconds, sizes are bytes.

Settings are plain values: equal if the configuration is equal, which tells a reload what has changed, and picklable,
for workers that start in a fresh interpreter. No key is compared with another here: `pools.py` and `reader.py` do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from supervisor.config import checks
from supervisor.config.checks import (
    Entries,
    Key,
    Keys,
    Tables,
    boolean,
    duration,
    limit,
    listed,
    memory,
    number,
    one_of,
    unless,
    whole,
)
from supervisor.config.limits import LIMITS, of_pools
from supervisor.domain.alerts import FAILURES, Alert
from supervisor.domain.enqueueing import MAX_ATTEMPTS, MAX_KEY, MAX_PRIORITY, MAX_WAITING
from supervisor.domain.limits import Limits
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.schedule import Schedule
from supervisor.domain.settlement import FollowUps, RetryPolicy
from supervisor.domain.text import SQLITE_URL, like
from supervisor.domain.values import text_key

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that assigns a worker one of its pool's `gpus`."""

MOST_IN_A_BATCH = 256
MOST_WORKERS = 1024
MOST = 1 << 53

_Settings = TypeVar("_Settings", bound=type[Any])


def key(check: Any, default: Any) -> Any:
    """A field that is a key of the file."""
    return Key(check, default)


def _from_file(settings: _Settings) -> _Settings:
    """Let the defaults of the class be those of its keys."""
    defaults = settings._field_defaults.values()
    settings.__new__.__defaults__ = tuple(each.default if isinstance(each, Key) else each for each in defaults)
    return settings


def keys_of(settings: type[Any]) -> Keys:
    return {name: each for name, each in settings._field_defaults.items() if isinstance(each, Key)}


@_from_file
class RetentionSettings(NamedTuple):
    """How many seconds finished jobs are kept; None keeps them forever."""

    done: float | None = key(checks.retention, 7 * checks.DAY)
    failed: float | None = key(checks.retention, 30 * checks.DAY)


@_from_file
class LogSettings(NamedTuple):
    """`auto` is `console` on a terminal and `json` elsewhere."""

    format: Literal["auto", "json", "console"] = key(one_of("auto", "json", "console"), "auto")
    level: Literal["debug", "info", "warning", "error"] = key(one_of("debug", "info", "warning", "error"), "info")


@_from_file
class MachineSettings(NamedTuple):
    """The memory that all pools share: the machine's and that of devices."""

    memory: int | None = key(memory, None)  # None: what the machine or the control group has, less a reserve
    min_residency: float = key(checks.patience, 30.0)
    max_wait: float = key(duration, 60.0)
    devices: Mapping[str, int] = {}


DEVICE: Keys = {"memory": Key(memory, None)}
"""The keys of `[devices.NAME]`."""


@_from_file
class AdminSettings(NamedTuple):
    """The admin process. `listen` is `host:port` or `unix:/absolute/path`; paths are absolute.

    `hosts` are names besides the loopback's under which browsers may reach it.
    """

    listen: str = key(checks.listen_address, "127.0.0.1:8787")
    token_file: Path | None = key(checks.file_name, None)  # None: none on a Unix socket; on TCP `tokens` sets a default
    read_token_file: Path | None = key(checks.file_name, None)  # for read-only access
    hosts: tuple[str, ...] = key(listed(checks.host_name), ())
    show_payloads: bool = key(boolean, False)
    allow_remote: bool = key(boolean, False)  # listen on addresses other than the loopback's

    @property
    def unix_path(self) -> Path | None:
        """The path of its Unix socket; None for TCP."""
        return Path(self.listen.removeprefix("unix:")) if self.listen.startswith("unix:") else None

    @property
    def address(self) -> tuple[str, int] | None:
        """The IP address, without brackets, and the port; None for a Unix socket."""
        if self.unix_path is not None:
            return None
        host, _, port = self.listen.rpartition(":")
        return "127.0.0.1" if host == "localhost" else host.strip("[]"), int(port)


@_from_file
class SpoolSettings(NamedTuple):
    """The files that requests bring."""

    folder: Path | None = key(checks.file_name, None)  # None: next to the database, and none for a server
    max_file: int = key(memory, 64 << 20)
    max_total: int = key(memory, 1 << 30)
    done: float | None = key(checks.retention, 600.0)  # after the success of a job; None: as long as it is kept


class TypeSettings(NamedTuple):
    """What differs for the jobs of one type from the others of its pool."""

    timeout: float
    retry: RetryPolicy
    follow: FollowUps = FollowUps()
    limits: Limits | None = None


RETRY_ON: Keys = {
    "max_attempts": Key(whole(1, MAX_ATTEMPTS), 5),
    "backoff": Key(one_of("exponential", "linear", "fixed"), "exponential"),
    "base": Key(duration, 2.0),
    "max": Key(duration, 600.0),
    "jitter": Key(number(0.0, 1.0), 0.1),
}
RETRY: Keys = {**RETRY_ON, "on": Key(Tables(RETRY_ON, checks.exception), {})}
TYPE: Keys = {
    **LIMITS,
    "timeout": Key(limit, None),
    "retry": Key(RETRY, {}),
    "max_attempts": Key(whole(1, MAX_ATTEMPTS), None),
    "give_up_on": Key(listed(checks.exception), ()),
    **dict.fromkeys(FollowUps._fields, Key(checks.job_type, None)),
}
TASK: Keys = {**TYPE, "priority": Key(whole(-MAX_PRIORITY, MAX_PRIORITY), 0)}
"""The options of `@task`; `priority` is of the jobs that it enqueues."""

WARMUP: Keys = {"type": Key(checks.job_type, None), "payload": Key(checks.payload, None)}
CANARY: Keys = {**WARMUP, "expect": Key(checks.payload, None), "tolerance": Key(number(0.0, 1e308), 0.0)}


class Trial(NamedTuple):
    """A run of a handler that is no job. `payload` and `expect` are JSON texts; `expect` is None if any result will do.
    Numbers may differ by `tolerance`.
    """

    type: str
    payload: str
    expect: str | None = None
    tolerance: float = 0.0


class PoolSettings(NamedTuple):
    """One pool: its workers, the jobs they may take, and their time limits. `pools.py` computes some of the values."""

    name: str
    by_type: Mapping[str, TypeSettings]  # for the types that differ
    batch_auto: bool  # each worker finds the size itself
    types: tuple[str, ...] = key(listed(checks.job_type, least=1), ())
    # module:attribute; of a pool with tasks: their modules with commas; empty for a pool with a command
    handler: str = key(checks.handler, "")
    command: tuple[str, ...] = key(listed(checks.argument, repeats=True), ())  # empty for a pool with a handler
    min_workers: int = key(whole(0, MOST_WORKERS), 1)  # 0: the pool may have no worker until a job comes
    max_workers: int = key(whole(1, MOST_WORKERS), 2)
    spares: int = key(whole(0, MOST_WORKERS), 0)  # set up, and without jobs until another one's place is free
    jobs_per_worker: int = key(whole(1, MOST), 1)  # due jobs that one worker is expected to handle, for scaling
    scale_down_delay: float = key(duration, 30.0)
    idle_timeout: float = key(duration, 300.0)  # after this time without workers, the template's memory is released
    capabilities: tuple[str, ...] = key(listed(checks.capability), ())
    min_priority: int | None = key(whole(-MAX_PRIORITY, MAX_PRIORITY), None)  # it takes no job below
    hosts: tuple[str, ...] = key(listed(checks.host_pattern), ())  # patterns of names; empty: it runs on every host
    prefetch: int | None = key(unless("auto", whole(1, 256)), None)  # None: determined by the worker's own speed
    concurrency: int = key(whole(1, 1000), 1)  # jobs that one worker runs at the same time
    batch_size: int = key(unless("auto", whole(1, MOST_IN_A_BATCH)), 1)  # the largest batch
    latency_target: float = key(limit, 0.2)  # that a batch with `batch_auto` may take
    batch_wait: float = key(duration, 0.02)
    batch_key: str | None = key(checks.field_path, None)
    batch_cost: str | None = key(checks.field_path, None)
    batch_budget: float | None = key(number(1e-6, 1e15), None)
    timeout: float = key(limit, 120.0)
    cancel_grace: float = key(duration, CANCEL_GRACE)  # from the cancel of a run to its interruption
    kill_grace: float = key(duration, KILL_GRACE)  # from the interruption of a run to the end of its worker
    startup_timeout: float = key(limit, 300.0)
    shutdown_grace: float = key(duration, 30.0)
    heartbeat_timeout: float = key(checks.patience, 60.0)
    lock_time: float = key(checks.patience, 60.0)
    max_jobs_per_worker: int | None = key(whole(1, MOST), None)
    max_memory: int | None = key(memory, None)  # of one worker
    memory_budget: int | None = key(memory, None)  # of the whole pool
    max_crashes: int = key(whole(1, MOST), 3)
    # due jobs of a type while which no request for another one is accepted
    max_waiting: int | None = key(whole(1, MAX_WAITING), None)
    start: Literal["fork", "spawn"] = key(one_of("fork", "spawn"), "fork")
    preload: bool = key(boolean, True)
    preload_setup: bool = key(boolean, False)  # also run the handler's setup once, before the fork
    gpus: tuple[str, ...] = key(listed(checks.device), ())  # distributed among the workers
    # of numerical libraries, per worker; None: determined by the image and the cores
    threads: int | None = key(unless("auto", whole(1, 1024)), None)
    cpu_affinity: tuple[int, ...] = key(listed(whole(0, 4095)), ())  # empty: all cores available to us
    nice: int = key(whole(0, 19), 0)
    # on sys.path before the configuration's folder, also those of PYTHONPATH in `env`
    path: tuple[Path, ...] = key(listed(checks.folder), ())
    env: Mapping[str, str] = key(checks.named(checks.variable, checks.argument), {})
    recover: Literal["pending", "failed"] = key(one_of("pending", "failed"), "pending")
    retry: RetryPolicy = key(RETRY, {})
    retry_failed_every: float = key(duration, 0.0)  # when a failed job becomes pending again automatically; 0: never
    retry_failed_times: int = key(whole(1, MAX_ATTEMPTS), 3)  # at most this often per job
    middleware: tuple[str, ...] = key(listed(checks.middleware), ())  # the outermost first
    warmup: Trial | None = key(WARMUP, {})  # in the set-up of each worker
    canary: Trial | None = key(CANARY, {})  # in the set-up of the first workers with new code
    options: Mapping[str, Any] = key(checks.named(checks.text(), checks.anything), {})  # the handler's own

    def timeout_of(self, type: str) -> float:
        return self.by_type[type].timeout if type in self.by_type else self.timeout

    @property
    def timeouts(self) -> list[float]:
        """Every time limit that a run in this pool may have."""
        return [self.timeout, *(settings.timeout for settings in self.by_type.values())]

    @property
    def policy(self) -> JobPolicy:
        """What happens to the pool's jobs when their worker cannot settle them."""
        by_type = {type_: settings.retry for type_, settings in self.by_type.items()}
        follow = {type_: settings.follow for type_, settings in self.by_type.items() if any(settings.follow)}
        return JobPolicy(self.retry, self.max_crashes, self.recover, self.lock_time, by_type, follow)

    @property
    def preloads(self) -> bool:
        """Whether workers are forked from an image that has imported the handler."""
        return bool(self.handler) and self.preload and self.start == "fork"


POOL: Keys = {
    **keys_of(PoolSettings),
    "tasks": Key(listed(checks.module), ()),
    "workers": Key(whole(1, MOST_WORKERS), 2),
    "max_batch_size": Key(whole(2, MOST_IN_A_BATCH), MOST_IN_A_BATCH),
    "give_up_on": TYPE["give_up_on"],
}
NAMING = ("types", "handler", "tasks", "command")
"""The keys that identify a pool, and so cannot have a default."""

SCHEDULE: Keys = {
    "name": Key(checks.schedule_name, ""),
    "type": Key(checks.job_type, ""),
    "payload": Key(checks.payload, "{}"),
    "cron": Key(checks.cron, None),
    "every": Key(checks.patience, None),
    "timezone": Key(checks.timezone, "UTC"),
    "misfire": Key(one_of("once", "skip", "all"), "once"),
    "unique_key": Key(lambda value: text_key("unique_key", value, MAX_KEY), None),
    "priority": TASK["priority"],
    "spread": Key(duration, 0.0),
    "expect_within": Key(checks.patience, None),
}
ALERT: Keys = {
    "when": Key(checks.alert_when, ("", 0.0)),
    "enqueue": Key(checks.job_type, ""),
    "payload": Key(checks.payload, "{}"),
    "every": Key(checks.patience, 600.0),
    "only": Key(listed(checks.text()), ()),
}


@_from_file
class Settings(NamedTuple):
    """One configuration file."""

    path: Path  # absolute, as it was given: a link in it leads to another file when it has been moved
    folder: Path  # its folder without links: on sys.path, and the start of relative paths
    pools: Mapping[str, PoolSettings]
    retention: RetentionSettings
    log: LogSettings
    database: str = key(checks.text(), SQLITE_URL)  # sqlite:////absolute/path
    schedules: tuple[Schedule, ...] = ()
    alerts: tuple[Alert, ...] = ()
    admin: AdminSettings | None = None  # None: no admin process
    # what happens to running jobs when the lease cannot be renewed
    on_partition: Literal["finish", "stop"] = key(one_of("finish", "stop"), "finish")
    listen_database: str | None = key(checks.text(), None)  # a URL of the same one without a pooler, for notifications
    machine: MachineSettings = MachineSettings()
    spool: SpoolSettings = SpoolSettings()

    @property
    def types(self) -> set[str]:
        """Those that its pools take."""
        return {type_ for pool in self.pools.values() for type_ in pool.types}

    @property
    def max_waiting(self) -> dict[str, int]:
        """By type; of several pools that take it, the largest counts."""
        limits: dict[str, int] = {}
        for pool in self.pools.values():
            if pool.max_waiting is not None:
                limits |= {type_: max(limits.get(type_, 0), pool.max_waiting) for type_ in pool.types}
        return limits

    @property
    def limits(self) -> dict[str, Limits]:
        """By type, for those that have any. Where the order counts, twice as many as its pools can run are admitted."""
        return of_pools(self.pools.values())


ALONE = keys_of(Settings)
"""The keys that are in no table."""


def _no_default(_: object) -> None:
    raise ValueError("each pool has its own; it cannot have a default")


TOP: Keys = {
    **ALONE,
    "log": Key(keys_of(LogSettings), {}),
    "admin": Key(keys_of(AdminSettings)),
    "machine": Key(keys_of(MachineSettings), {}),
    "devices": Key(Tables(DEVICE), {}),
    "retention": Key(keys_of(RetentionSettings), {}),
    "spool": Key(keys_of(SpoolSettings), {}),
    "schedules": Key(Entries(SCHEDULE, ("name", "type")), ()),
    "alerts": Key(Entries(ALERT, ("when", "enqueue")), ()),
    "pools": Key(Tables(POOL), {}),
    "types": Key(Tables(TYPE), {}),
    "defaults": Key({**POOL, **dict.fromkeys(NAMING, Key(_no_default))}, {}),
}
"""The whole file."""


def homes(keys: Keys) -> Iterator[tuple[str, Keys]]:
    """How each table in this one is written, and its keys."""
    for name, (kind, _) in keys.items():
        if isinstance(kind, Tables):
            yield f"[{name}.NAME]", kind.keys
        elif isinstance(kind, Entries):
            yield f"[[{name}]]", kind.keys
        elif isinstance(kind, Mapping):
            yield (f"[{name}]" if keys is TOP else f"{name} = {{ … }}"), kind


HOMES: dict[str, Keys] = {"the file itself, above its first [table]": ALONE, **dict(homes(TOP)), **dict(homes(POOL))}
"""How every table is written, and its keys."""


def untaken(settings: Settings) -> list[tuple[str, str]]:
    """A sentence for each "schedule", "alert", "follow_up" or "priority" whose jobs no pool of this configuration
    takes. A pool of another supervisor may.
    """
    types = sorted(settings.types)
    wanted = [("schedule", schedule.type, f"of the schedule {schedule.name}") for schedule in settings.schedules]
    for alert in settings.alerts:
        wanted.append(("alert", alert.type, f"of the alert about {alert.when}"))
        if alert.when in FAILURES:
            wanted += [("alert", name, f"that the alert about {alert.when} is for") for name in alert.only]
    for pool in settings.pools.values():
        for name, follow in pool.policy.follow_ups.items():
            wanted += [("follow_up", type_, f"that follows {name}") for type_ in follow if type_ is not None]
    found = [
        (about, f"no pool takes the type {type_} {whose}{like(type_, types)}")
        for about, type_, whose in wanted
        if type_ not in types
    ]
    for type_ in types:
        least = [pool.min_priority for pool in settings.pools.values() if type_ in pool.types]
        lowest = min(-MAX_PRIORITY if priority is None else priority for priority in least)
        if lowest > -MAX_PRIORITY:
            advice = "add a pool for them without min_priority"
            found.append(("priority", f"no pool takes jobs of the type {type_} below priority {lowest}: {advice}"))
    return found
