"""The settings of pools and of types, and their keys in `supervisor.toml`: what each may be, its value where it is not
written, and what it is about. Durations are seconds, sizes are bytes.

No key is compared with another here: `pools.py` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from supervisor.config import checks
from supervisor.config.checks import (
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
from supervisor.config.limits import LIMITS
from supervisor.domain.enqueueing import MAX_ATTEMPTS, MAX_PRIORITY, MAX_WAITING
from supervisor.domain.limits import Limits
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import FollowUps, RetryPolicy

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that assigns a worker one of its pool's `gpus`."""

MOST_IN_A_BATCH = 256
MOST_WORKERS = 1024
MOST = 1 << 53

_Settings = TypeVar("_Settings", bound=type[Any])


def key(check: Any, default: Any, about: str) -> Any:
    """A field that is a key of the file."""
    return Key(check, default, about)


def from_file(settings: _Settings) -> _Settings:
    """Let the defaults of the class be those of its keys."""
    defaults = settings._field_defaults.values()
    settings.__new__.__defaults__ = tuple(each.default if isinstance(each, Key) else each for each in defaults)
    return settings


def keys_of(settings: type[Any]) -> Keys:
    return {name: each for name, each in settings._field_defaults.items() if isinstance(each, Key)}


class TypeSettings(NamedTuple):
    """What differs for the jobs of one type from the others of its pool."""

    timeout: float
    retry: RetryPolicy
    follow: FollowUps = FollowUps()
    limits: Limits | None = None


RETRY_ON: Keys = {
    "max_attempts": Key(
        whole(1, MAX_ATTEMPTS), 5, "How many attempts a job has, counting the first; a job's own number counts instead."
    ),
    "backoff": Key(
        one_of("exponential", "linear", "fixed"),
        "exponential",
        "How the delay grows: doubled each time, `base` × attempt, or not at all.",
    ),
    "base": Key(duration, 2.0, "The delay after the first failure."),
    "max": Key(duration, 600.0, "The longest delay."),
    "jitter": Key(number(0.0, 1.0), 0.1, "Each delay is changed at random by up to this fraction."),
}
RETRY: Keys = {
    **RETRY_ON,
    "on": Key(Tables(RETRY_ON, checks.exception), {}, "What differs after an exception: a table for each class."),
}
TYPE: Keys = {
    "timeout": Key(limit, None, "How long a run of this type may take."),
    "retry": Key(RETRY, {}, "When a failed attempt is repeated; merged with the pool's key by key."),
    "max_attempts": Key(whole(1, MAX_ATTEMPTS), None, "Short for `retry = { max_attempts = … }`."),
    "give_up_on": Key(listed(checks.exception), (), "Exceptions after which no further attempt is made."),
    "on_done": Key(checks.job_type, None, "The type of a job that follows when one of this type is done."),
    "on_failed": Key(checks.job_type, None, "The same when one has failed for good, or is quarantined."),
    **LIMITS,
}
TASK: Keys = {
    **TYPE,
    "priority": Key(whole(-MAX_PRIORITY, MAX_PRIORITY), 0, "The priority of its jobs; higher runs first."),
}
"""The options of `@task`; `priority` is of the jobs that it enqueues."""

WARMUP: Keys = {
    "type": Key(checks.job_type, None, "The type of the job; required if the pool takes several."),
    "payload": Key(checks.payload, None, "Its payload."),
}
CANARY: Keys = {
    **WARMUP,
    "expect": Key(
        checks.payload, None, "The result, if not any: tables in it may have fewer keys, lists have the same length."
    ),
    "tolerance": Key(number(0.0, 1e308), 0.0, "How far numbers may differ."),
}


class Trial(NamedTuple):
    """A run of a handler that is no job. `payload` and `expect` are JSON texts; `expect` is None if any result will do.
    Numbers may differ by `tolerance`.
    """

    type: str
    payload: str
    expect: str | None = None
    tolerance: float = 0.0


@from_file
class PoolSettings(NamedTuple):
    """One pool: its workers, the jobs they may take, and their time limits. `pools.py` computes some of the values."""

    name: str
    by_type: Mapping[str, TypeSettings]  # for the types that differ
    batch_auto: bool  # each worker finds the size itself
    # with tasks: their modules with commas; empty for a pool with a command
    handler: str = key(checks.handler, "", "The function or class that workers import and call.")
    command: tuple[str, ...] = key(
        listed(checks.argument, repeats=True),
        (),
        "A program with arguments that each worker starts, without a shell.",
    )
    types: tuple[str, ...] = key(
        listed(checks.job_type, least=1), (), "The types that the pool takes; with `tasks`, which of theirs."
    )
    min_workers: int = key(
        whole(0, MOST_WORKERS), 1, "Instead of `workers`: the least number; with 0, none until a job arrives."
    )
    max_workers: int = key(whole(1, MOST_WORKERS), 2, "Instead of `workers`: the greatest number.")
    jobs_per_worker: int = key(
        whole(1, MOST), 1, "The pool grows when more jobs than this are due for each worker; at least `concurrency`."
    )
    scale_down_delay: float = key(duration, 30.0, "How long a worker is not needed before the pool shrinks by one.")
    idle_timeout: float = key(
        duration, 300.0, "After this long without workers, the template ends, which frees its memory."
    )
    spares: int = key(whole(0, MOST_WORKERS), 0, "How many more workers wait, set up, to replace one that ends.")
    concurrency: int = key(whole(1, 1000), 1, "How many jobs a worker runs at the same time.")
    prefetch: int | None = key(  # None: determined by the worker's own speed
        unless("auto", whole(1, 256)), None, 'How many jobs a worker claims at once; "auto": about 20 ms of work.'
    )
    capabilities: tuple[str, ...] = key(
        listed(checks.capability), (), "What the workers have: a job may require some of it."
    )
    min_priority: int | None = key(
        whole(-MAX_PRIORITY, MAX_PRIORITY), None, "The pool takes only jobs with at least this priority."
    )
    hosts: tuple[str, ...] = key(
        listed(checks.host_pattern), (), "With PostgreSQL, the hosts on which the pool runs; empty: all."
    )
    timeout: float = key(limit, 120.0, "How long a run may take: a longer one is interrupted, a failed attempt.")
    cancel_grace: float = key(
        duration, CANCEL_GRACE, "How long a cancelled run may take to notice `ctx.cancelled` before it is interrupted."
    )
    kill_grace: float = key(
        duration, KILL_GRACE, "How long an interrupted run may take to end before its worker is killed."
    )
    startup_timeout: float = key(limit, 300.0, "How long import and `setup`, or the `hello` of a program, may take.")
    shutdown_grace: float = key(duration, 30.0, "How long a stop waits for running jobs; also the limit of `teardown`.")
    heartbeat_timeout: float = key(
        checks.patience,
        60.0,
        "A worker whose heartbeat is this late, and that has used no CPU for half as long again, is killed as stuck.",
    )
    lock_time: float = key(checks.patience, 60.0, "How long a claim lasts without renewal.")
    retry: RetryPolicy = key(RETRY, {}, "When a failed attempt is repeated.")
    retry_failed_every: float = key(
        duration, 0.0, "How long after it has failed for good a job is pending again, counters reset; 0s: never."
    )
    retry_failed_times: int = key(
        whole(1, MAX_ATTEMPTS), 3, "How often `retry_failed_every` does that; a retry by hand resets the count."
    )
    max_crashes: int = key(whole(1, MOST), 3, "A job with which this many workers have died is quarantined.")
    recover: Literal["pending", "failed"] = key(
        one_of("pending", "failed"), "pending", "What a running job becomes when its whole supervisor is killed."
    )
    max_waiting: int | None = key(
        whole(1, MAX_WAITING),
        None,
        "While so many jobs of a type wait, `POST /run` answers 429; of several pools, the largest number counts.",
    )
    max_memory: int | None = key(memory, None, "A worker that uses more is replaced after its job.")
    memory_budget: int | None = key(memory, None, "The pool grows only as far as its workers fit into this.")
    max_jobs_per_worker: int | None = key(
        whole(1, MOST), None, "After this many jobs a worker is replaced; the new one is ready before it leaves."
    )
    batch_size: int = key(
        unless("auto", whole(1, MOST_IN_A_BATCH)), 1, 'How many jobs run together; "auto": each worker determines it.'
    )
    latency_target: float = key(limit, 0.2, 'How long a batch of the size "auto" may take.')
    batch_wait: float = key(duration, 0.02, "How long a batch that is not full waits for more jobs.")
    batch_key: str | None = key(checks.field_path, None, "Only jobs with the same value here run in one batch.")
    batch_cost: str | None = key(checks.field_path, None, "Where the cost of a job is; needs `batch_budget`.")
    batch_budget: float | None = key(number(1e-6, 1e15), None, "The most that a batch may cost; needs `batch_cost`.")
    start: Literal["fork", "spawn"] = key(
        one_of("fork", "spawn"), "fork", 'How workers start; "spawn": each is a new interpreter.'
    )
    preload: bool = key(boolean, True, "Whether the template imports the handler before it forks.")
    preload_setup: bool = key(
        boolean, False, "Whether it also runs `setup`, once: workers then share the memory of the model."
    )
    path: tuple[Path, ...] = key(  # and the folders of PYTHONPATH in `env`
        listed(checks.folder), (), "Folders of your code, searched before that of the file."
    )
    env: Mapping[str, str] = key(
        checks.named(checks.variable, checks.argument), {}, "Environment variables of template and workers."
    )
    middleware: tuple[str, ...] = key(
        listed(checks.middleware), (), "Code that is called around each run, the outermost first."
    )
    warmup: Trial | None = key(WARMUP, {}, "A payload with which each worker calls the handler in its set-up.")
    canary: Trial | None = key(CANARY, {}, "A smoke test by the first workers with new code, in their set-up.")
    options: Mapping[str, Any] = key(
        checks.named(checks.text(), checks.anything), {}, "Settings for your handler: `ctx.options`."
    )
    gpus: tuple[str, ...] = key(listed(checks.device), (), "Devices that are distributed among the workers.")
    threads: int | None = key(  # None: determined by the image and the cores
        unless("auto", whole(1, 1024)), None, "Threads of numerical libraries in each worker."
    )
    cpu_affinity: tuple[int, ...] = key(
        listed(whole(0, 4095)), (), "The numbers of the cores that the workers may use; empty: all."
    )
    nice: int = key(whole(0, 19), 0, "With a higher value, a smaller share of the cores.")

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
    "tasks": Key(listed(checks.module), (), "Modules, or packages with all their modules, that have tasks."),
    "workers": Key(whole(1, MOST_WORKERS), 2, "The number of worker processes."),
    "max_batch_size": Key(whole(2, MOST_IN_A_BATCH), MOST_IN_A_BATCH, 'The largest batch of the size "auto".'),
    "give_up_on": TYPE["give_up_on"],
    **keys_of(PoolSettings),
}
NAMING = ("types", "handler", "tasks", "command")
"""The keys that identify a pool, and so cannot have a default."""
