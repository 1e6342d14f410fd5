"""The settings that the program uses: complete, valid and frozen.

They are plain values: equal if the configuration is equal, which tells a reload what has changed, and
picklable, for workers that start in a fresh interpreter. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from supervisor.domain.alerts import Alert
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.schedule import Schedule
from supervisor.domain.settlement import RetryPolicy
from supervisor.domain.trial import Trial

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that assigns a worker one of its pool's `gpus`."""


class RetentionSettings(NamedTuple):
    """How many seconds finished jobs are kept; None keeps them forever."""

    done: float | None
    failed: float | None


class LogSettings(NamedTuple):
    """`auto` is `console` on a terminal and `json` elsewhere."""

    format: Literal["auto", "json", "console"]
    level: Literal["debug", "info", "warning", "error"]


class MachineSettings(NamedTuple):
    """The memory that all pools share, in bytes: the machine's and that of devices."""

    memory: int | None = None  # None: what the machine or the control group has, less a reserve
    min_residency: float = 30.0
    max_wait: float = 60.0
    devices: Mapping[str, int] = {}


class AdminSettings(NamedTuple):
    """The admin process. `listen` is `host:port` or `unix:/absolute/path`; paths are absolute.

    `hosts` are names besides the loopback's under which browsers may reach it.
    """

    listen: str
    token_file: Path | None  # None on a Unix socket, which needs none; on TCP until `access` has set a default
    read_token_file: Path | None  # for read-only access
    hosts: tuple[str, ...]
    show_payloads: bool
    allow_remote: bool  # listen on addresses other than the loopback's

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


class SpoolSettings(NamedTuple):
    """The files that requests bring. Sizes are bytes; `done` is seconds after the success of a job, None: as long as it
    is kept.
    """

    folder: Path | None = None  # None: next to the database, and none for a server
    max_file: int = 64 << 20
    max_total: int = 1 << 30
    done: float | None = 600.0


class TypeSettings(NamedTuple):
    """What differs for the jobs of one type from the others of its pool."""

    timeout: float
    retry: RetryPolicy


class PoolSettings(NamedTuple):
    """One pool: its workers, the jobs they may take, and their time limits."""

    name: str
    types: tuple[str, ...]
    by_type: Mapping[str, TypeSettings]  # for the types that differ
    handler: str  # module:attribute; of a pool with tasks: their modules with commas; empty for a pool with a command
    command: tuple[str, ...]  # a program and its arguments; empty for a pool with a handler
    min_workers: int  # 0: the pool may have no worker until a job comes
    max_workers: int
    spares: int  # workers that are set up and take no job until another one's place is free
    jobs_per_worker: int  # due jobs that one worker is expected to handle, for scaling
    scale_down_delay: float
    idle_timeout: float  # after this time without workers, the template's memory is released
    capabilities: tuple[str, ...]
    min_priority: int | None  # it takes no job below; None: jobs of every priority
    hosts: tuple[str, ...]  # patterns of names; empty: it runs on every host
    prefetch: int | None  # None: determined by the worker's own speed
    concurrency: int  # jobs that one worker runs at the same time
    batch_size: int  # the largest batch
    batch_auto: bool  # each worker finds the size itself
    latency_target: float  # seconds that such a batch may take
    batch_wait: float
    batch_key: str | None  # fields of the payload; None: the handler's own methods, if it has them
    batch_cost: str | None
    batch_budget: float | None
    timeout: float
    cancel_grace: float  # from the cancel of a run to its interruption
    kill_grace: float  # from the interruption of a run to the end of its worker
    startup_timeout: float
    shutdown_grace: float
    heartbeat_timeout: float
    lock_time: float
    max_jobs_per_worker: int | None  # None: no limit
    max_memory: int | None  # bytes of one worker
    memory_budget: int | None  # bytes of the whole pool
    keep_freed_memory: int | None  # bytes; None: determined by batches, devices and limits
    max_crashes: int
    max_waiting: int | None  # due jobs of a type while which no request for another one is accepted
    start: Literal["fork", "spawn"]
    preload: bool
    preload_setup: bool  # also run the handler's setup once, before the fork
    gpus: tuple[str, ...]  # distributed among the workers
    threads: int | None  # of numerical libraries, per worker; None: determined by the image and the cores
    cpu_affinity: tuple[int, ...]  # cores that its workers may use; empty: all cores available to us
    nice: int
    path: tuple[Path, ...]  # folders on sys.path before the configuration's, also those of PYTHONPATH in `env`
    env: Mapping[str, str]
    recover: Literal["pending", "failed"]
    retry: RetryPolicy
    retry_failed_every: float  # seconds after which a failed job becomes pending again automatically; 0: never
    retry_failed_times: int  # at most this often per job
    middleware: tuple[str, ...]  # module:attribute, the outermost first
    warmup: Trial | None  # in the set-up of each worker
    canary: Trial | None  # in the set-up of the first workers with new code
    options: Mapping[str, Any]  # the handler's own, never inspected here

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
        return JobPolicy(self.retry, self.max_crashes, self.recover, self.lock_time, by_type)

    @property
    def preloads(self) -> bool:
        """Whether workers are forked from an image that has imported the handler."""
        return bool(self.handler) and self.preload and self.start == "fork"


class Settings(NamedTuple):
    """One configuration file."""

    path: Path  # absolute, as it was given: a link in it leads to another file when it has been moved
    folder: Path  # its folder without links: on sys.path, and the start of relative paths
    database: str  # sqlite:////absolute/path
    pools: Mapping[str, PoolSettings]
    retention: RetentionSettings
    log: LogSettings
    schedules: tuple[Schedule, ...] = ()
    alerts: tuple[Alert, ...] = ()
    admin: AdminSettings | None = None  # None: no admin process
    on_partition: Literal["finish", "stop"] = "finish"  # what happens to running jobs when the lease cannot be renewed
    listen_database: str | None = None  # a URL of the same database without a pooler, for notifications
    vacuum: bool = True  # of our tables on a server, where autovacuum comes too late
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
