"""What `supervisor.toml` may contain: the keys of each table, their types, limits and defaults.

No key is required here and no key is compared with another: so a table can be checked on its own,
`[defaults]` like any pool, and a problem is reported where it was written. `pools.py` checks the rules
between keys.
"""

from __future__ import annotations

from typing import Any

from supervisor.config import kinds
from supervisor.config.values import Inner, Key, Table, anything, boolean, listed, named, number, one_of, text, whole
from supervisor.domain.intake import MAX_ATTEMPTS, MAX_PRIORITY, MAX_WAITING
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE


class RetryTable(Table):
    max_attempts = Key(whole(1, MAX_ATTEMPTS), 5)
    backoff = Key[Any](one_of("exponential", "linear", "fixed"), "exponential")
    base = Key(kinds.duration, 2.0)
    max = Key(kinds.duration, 600.0)
    jitter = Key(number(0.0, 1.0), 0.1)


class WarmupTable(Table):
    type = Key[str | None](text(kinds.job_type), None)
    payload = Key[str | None](kinds.payload, None)


class CanaryTable(Table):
    type = Key[str | None](text(kinds.job_type), None)
    payload = Key[str | None](kinds.payload, None)
    expect = Key[str | None](kinds.payload, None)
    tolerance = Key(number(0.0, 1e308), 0.0)


class PoolTable(Table):
    """`[pools.NAME]`, and `[defaults]` without the keys that identify a pool."""

    types = Key[list[str]](listed(text(kinds.job_type), kinds.distinct, kinds.not_empty), [])
    handler = Key(text(kinds.handler), "")
    tasks = Key[list[str]](listed(text(kinds.module), kinds.distinct), [])
    command = Key[list[str]](listed(text(kinds.argument), kinds.command), [])
    workers = Key(kinds.number_of_workers, 2)  # pools.py computes the sizes, because there are two ways to write them
    min_workers = Key(whole(0, kinds.MOST_WORKERS), 1)
    max_workers = Key(kinds.number_of_workers, 2)
    spares = Key(whole(0, kinds.MOST_WORKERS), 0)
    jobs_per_worker = Key(kinds.count, 1)
    scale_down_delay = Key(kinds.duration, 30.0)
    idle_timeout = Key(kinds.duration, 300.0)
    capabilities = Key[list[str]](listed(text(kinds.capability), kinds.distinct), [])
    min_priority = Key[int | None](whole(-MAX_PRIORITY, MAX_PRIORITY), None)
    hosts = Key[list[str]](listed(text(kinds.host_pattern), kinds.distinct), [])
    prefetch = Key(whole(1, 256, auto=True), None)
    concurrency = Key(whole(1, kinds.MOST_AT_ONCE), 1)
    batch_size = Key[int | None](whole(1, kinds.MOST_IN_A_BATCH, auto=True), 1)
    max_batch_size = Key(whole(2, kinds.MOST_IN_A_BATCH), kinds.MOST_IN_A_BATCH)
    latency_target = Key(kinds.wait, 0.2)
    batch_wait = Key(kinds.duration, 0.02)
    batch_key = Key[str | None](text(kinds.field_path), None)
    batch_cost = Key[str | None](text(kinds.field_path), None)
    batch_budget = Key[float | None](number(0.0, 1e15), None)
    timeout = Key(kinds.wait, 120.0)
    cancel_grace = Key(kinds.duration, CANCEL_GRACE)
    kill_grace = Key(kinds.duration, KILL_GRACE)
    startup_timeout = Key(kinds.wait, 300.0)
    shutdown_grace = Key(kinds.duration, 30.0)
    heartbeat_timeout = Key(kinds.patience, 60.0)
    lock_time = Key(kinds.patience, 60.0)
    max_jobs_per_worker = Key[int | None](kinds.count, None)
    max_memory = Key[int | None](kinds.memory, None)
    memory_budget = Key[int | None](kinds.memory, None)
    keep_freed_memory = Key[int | None](kinds.kept_memory, None)
    max_crashes = Key(kinds.count, 3)
    max_waiting = Key[int | None](whole(1, MAX_WAITING), None)
    start = Key[Any](one_of("fork", "spawn"), "fork")
    preload = Key(boolean, True)
    preload_setup = Key(boolean, False)
    gpus = Key[list[str]](listed(kinds.device, kinds.distinct), [])
    threads = Key(whole(1, kinds.MOST_THREADS, auto=True), None)
    cpu_affinity = Key[list[int]](listed(whole(0, kinds.MOST_CORES - 1), kinds.distinct), [])
    nice = Key(whole(0, 19), 0)
    path = Key[list[str]](listed(text(kinds.folder), kinds.distinct), [])
    env = Key[dict[str, str]](named(kinds.variable, text(kinds.variable_value)), {})
    recover = Key[Any](one_of("pending", "failed"), "pending")
    retry = Inner(RetryTable)
    give_up_on = Key[list[str]](listed(text(kinds.exception), kinds.distinct), [])
    retry_failed_every = Key(kinds.duration, 0.0)
    retry_failed_times = Key(whole(1, MAX_ATTEMPTS), 3)
    middleware = Key[list[str]](listed(text(kinds.middleware), kinds.distinct), [])
    warmup = Inner(WarmupTable)
    canary = Inner(CanaryTable)
    options = Key[dict[str, Any]](named(text(), anything), {})


NAMING = frozenset({"types", "handler", "tasks", "command"})
"""Keys that identify a pool, and so cannot have a default."""


class TypeTable(Table):
    """`[types.NAME]`: what may differ between the types of a pool."""

    timeout = Key[float | None](kinds.wait, None)
    retry = Inner(RetryTable)
    max_attempts = Key[int | None](whole(1, MAX_ATTEMPTS), None)
    give_up_on = Key[list[str]](listed(text(kinds.exception), kinds.distinct), [])


class ScheduleTable(Table):
    """One of `[[schedules]]`; `schedules.py` checks the rules between its keys."""

    name = Key(text(kinds.schedule_name), "")
    type = Key(text(kinds.job_type), "")
    payload = Key(kinds.payload, "{}")
    cron = Key[str | None](kinds.cron, None)
    every = Key[float | None](kinds.duration_from(at_least=1.0), None)
    timezone = Key(text(kinds.timezone), "UTC")
    misfire = Key[Any](one_of("once", "skip", "all"), "once")
    unique_key = Key[str | None](kinds.unique_key, None)


class AlertTable(Table):
    """One of `[[alerts]]`; `alerts.py` checks the rules between its keys."""

    when = Key[tuple[str, float]](kinds.alert_when, ("", 0.0))
    enqueue = Key(text(kinds.job_type), "")
    payload = Key(kinds.payload, "{}")
    every = Key(kinds.duration_from(at_least=1.0), 600.0)
    only = Key[list[str]](listed(text(), kinds.distinct), [])


class RetentionTable(Table):
    done = Key[float | None](kinds.retention, 7 * kinds.DAY)
    failed = Key[float | None](kinds.retention, 30 * kinds.DAY)


class AdminTable(Table):
    """`[admin]`; `admin.py` checks the rules between its keys."""

    listen = Key(text(kinds.listen_address), "127.0.0.1:8787")
    token_file = Key[str | None](text(kinds.file_name), None)
    read_token_file = Key[str | None](text(kinds.file_name), None)
    hosts = Key[list[str]](listed(text(kinds.host_name), kinds.distinct), [])
    show_payloads = Key(boolean, False)
    allow_remote = Key(boolean, False)


class MachineTable(Table):
    """`[machine]`: the memory that all pools share."""

    memory = Key[int | None](kinds.memory, None)
    min_residency = Key(kinds.patience, 30.0)
    max_wait = Key(kinds.duration, 60.0)


class DeviceTable(Table):
    """`[devices.NAME]`: the memory of one of the pools' `gpus`."""

    memory = Key[int | None](kinds.memory, None)


class SpoolTable(Table):
    """`[spool]`: the files that are sent to `POST /run`; `spool.py` checks the rules between its keys."""

    folder = Key[str | None](text(kinds.file_name), None)
    max_file = Key(kinds.memory, 64 << 20)
    max_total = Key(kinds.memory, 1 << 30)
    done = Key[float | None](kinds.retention, 600.0)


class LogTable(Table):
    format = Key[Any](one_of("auto", "json", "console"), "auto")
    level = Key[Any](one_of("debug", "info", "warning", "error"), "info")


_ALONE = ("database", "listen_database", "on_partition", "vacuum")
_TABLES = ("pools", "types", "schedules", "alerts", "retention", "machine", "devices", "admin", "spool", "log")
TOP = (*_ALONE, "defaults", *_TABLES)
"""The keys of the file itself."""

HOMES = {
    **dict.fromkeys(CanaryTable.keys, "canary = { … }"),
    **dict.fromkeys(TypeTable.keys, "[types.NAME]"),
    **dict.fromkeys(RetryTable.keys, "retry = { … }"),
    **dict.fromkeys(PoolTable.keys, "[pools.NAME]"),
    **dict.fromkeys(PoolTable.keys.keys() - NAMING, "[pools.NAME] or [defaults]"),
    **dict.fromkeys(ScheduleTable.keys, "[[schedules]]"),
    **dict.fromkeys(AlertTable.keys.keys() - ScheduleTable.keys, "[[alerts]]"),
    **dict.fromkeys(RetentionTable.keys, "[retention]"),
    **dict.fromkeys(MachineTable.keys, "[machine]"),
    **dict.fromkeys(AdminTable.keys, "[admin]"),
    **dict.fromkeys(SpoolTable.keys.keys() - RetentionTable.keys.keys(), "[spool]"),
    **dict.fromkeys(LogTable.keys, "[log]"),
    **dict.fromkeys(_ALONE, "the file itself, above its first [table]"),
}
"""The table in which a key belongs, for keys found in another table."""
