"""What `supervisor.toml` may contain: the keys of each table, their types, limits and defaults.

No key is required here and no key is compared with another: so a table can be checked on its own,
`[defaults]` like any pool, and a problem is reported where it was written. `pools.py` checks the rules
between keys.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from supervisor.config import addresses
from supervisor.config.hosts import host_pattern
from supervisor.config.problems import shown
from supervisor.config.values import Inner, Key, Table, anything, boolean, listed, named, number, one_of, text, whole
from supervisor.domain.alerts import WHEN
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import MAX_ATTEMPTS, MAX_PRIORITY, MAX_WAITING, checked_type, checked_unique_key, encode
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE
from supervisor.domain.schedule import Schedule, zone
from supervisor.domain.text import human, human_size, seconds, size

LONGEST = 36_500 * 86_400.0  # seconds; a hundred years: beyond it, sums with clocks become meaningless
SMALLEST = 1 << 20  # bytes; no Python process is smaller, so such a limit would replace workers forever
MOST_IN_A_BATCH = 256
MOST_AT_ONCE = 1000  # jobs in one worker
MOST_WORKERS = 1024
MOST_THREADS = 1024
MOST_CORES = 4096
FOR_EVER = "forever"

_Listed = TypeVar("_Listed")

_POOL_NAME = re.compile(r"[a-z0-9_.-]{1,100}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_HANDLER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_CAPABILITY = re.compile(r"[!-+\--~]{1,100}")  # printable ASCII without the space and the comma
_WHEN = ", ".join(repr(name) for name in WHEN if name != "oldest_due") + " or 'oldest_due > 5m'"
_DEVICE = re.compile(r"\d{1,4}|[A-Za-z][A-Za-z0-9_./:-]{0,99}")  # 0, GPU-8932f937-…, MIG-…


def is_pool_name(name: str) -> bool:
    return _POOL_NAME.fullmatch(name) is not None


def _duration(at_least: float = 0.0) -> Callable[[object], float]:
    def validate(value: object) -> float:
        if not isinstance(value, str):  # 500 could mean milliseconds as well as seconds
            raise ValueError(f"{shown(value)} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
        length = seconds(value)
        if not at_least <= length <= LONGEST:
            raise ValueError(f"{value!r} is out of range; it must be from {human(at_least)} to 36500d")
        return length

    return validate


def _retention(value: object) -> float | None:
    if value == FOR_EVER:
        return None
    try:
        return _duration()(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "{FOR_EVER}"') from None


def _memory(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a size; write it like 512MiB or 2GiB")
    limit = size(value)
    if not SMALLEST <= limit < 1 << 63:
        raise ValueError(f"{value!r} is out of range; it must be at least {human_size(SMALLEST)}")
    return limit


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def validate(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return validate


def _kept(value: object) -> int:
    return 0 if value == "0" else _memory(value)


_handler = _matching(_HANDLER, 'a handler; write module:attribute, like "jobs:greet"')
_module = _matching(_MODULE, 'a module; write it like "jobs" or "mail.jobs"')
_exception = _matching(_MODULE, 'the name of an exception; write it like "ValueError" or "requests.Timeout"')
_middleware = _matching(_HANDLER, 'a middleware; write module:attribute, like "tracing:Tracing"')


def _argument(value: str) -> str:
    if "\0" in value:
        raise ValueError("a program's argument cannot contain a NUL character")
    return value


def _command(values: list[str]) -> list[str]:
    if values and not values[0].strip():
        raise ValueError('it contains no program; write it like ["python3", "tag.py"]')
    return values


def _type(value: str) -> str:
    try:
        return checked_type(value)
    except InvalidJob:
        raise ValueError(f"{value!r} is not a type; a type has 1 to 100 characters of a-z A-Z 0-9 _ . : / -") from None


def _capability(value: str) -> str:
    if not _CAPABILITY.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a capability; one has 1 to 100 printable ASCII characters, no space and no comma"
        )
    return value


def _distinct(values: list[_Listed]) -> list[_Listed]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} is listed twice")
    return values


def _some(values: list[str]) -> list[str]:
    if not values:
        raise ValueError("the list is empty; omit the key to use the pool's own name, or all its tasks")
    return values


def _folder(value: str) -> str:
    if not value.strip() or "\0" in value or os.pathsep in value:
        raise ValueError(f'{value!r} is not a folder; write it like "src"')
    return value


def _path(value: str) -> str:
    if not all(part.strip() for part in value.split(".")):
        raise ValueError(f'{value!r} is not a field of a payload; write it like "model" or "options.model"')
    return value


def _device(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_CORES:
        value = str(value)
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise ValueError(f'{shown(value)} is not a device; write its number, or its id like "GPU-8932f937" or "MIG-…"')
    return value


def _variable(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("an environment variable cannot have this name")
    return name


def _variable_value(value: str) -> str:
    if "\0" in value:
        raise ValueError("an environment variable cannot contain a NUL character")
    return value


def _schedule_name(value: str) -> str:
    if not _POOL_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid name; it must have 1 to 100 characters of a-z 0-9 _ . -")
    return value


def _payload(value: Any) -> str:
    try:
        return encode("payload", value)
    except InvalidJob as error:
        raise ValueError(error.problem) from None


def _unique_key(value: object) -> str | None:
    try:
        return checked_unique_key(value)
    except InvalidJob as error:
        raise ValueError(error.problem) from None


def _when(value: object) -> tuple[str, float]:
    """What an alert is about, and the seconds of "oldest_due > 5m"."""
    name, sign, length = (part.strip() for part in (value if isinstance(value, str) else "").partition(">"))
    if name not in WHEN or (sign == ">") != (name == "oldest_due"):
        raise ValueError(f"must be {_WHEN}, not {shown(value)}")
    return name, wait(length) if sign else 0.0


def _timezone(value: str) -> str:
    zone(value)
    return value


def _cron(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a cron line; write it like "30 3 * * *"')
    next(Schedule("", "", "", value, None, "UTC", "once").after(time.time()))
    return value


_DAY = 86_400.0

duration = _duration()
wait = _duration(at_least=0.001)
patience = _duration(at_least=1.0)
count = whole(1, 1 << 53)
number_of_workers = whole(1, MOST_WORKERS)


class RetryTable(Table):
    max_attempts = Key(whole(1, MAX_ATTEMPTS), 5)
    backoff = Key[Any](one_of("exponential", "linear", "fixed"), "exponential")
    base = Key(duration, 2.0)
    max = Key(duration, 600.0)
    jitter = Key(number(0.0, 1.0), 0.1)


class WarmupTable(Table):
    type = Key[str | None](text(_type), None)
    payload = Key[str | None](_payload, None)


class CanaryTable(Table):
    type = Key[str | None](text(_type), None)
    payload = Key[str | None](_payload, None)
    expect = Key[str | None](_payload, None)
    tolerance = Key(number(0.0, 1e308), 0.0)


class PoolTable(Table):
    """`[pools.NAME]`, and `[defaults]` without the keys that identify a pool."""

    types = Key[list[str]](listed(text(_type), _distinct, _some), [])
    handler = Key(text(_handler), "")
    tasks = Key[list[str]](listed(text(_module), _distinct), [])
    command = Key[list[str]](listed(text(_argument), _command), [])
    workers = Key(number_of_workers, 2)  # pools.py computes the sizes, because there are two ways to write them
    min_workers = Key(whole(0, MOST_WORKERS), 1)
    max_workers = Key(number_of_workers, 2)
    spares = Key(whole(0, MOST_WORKERS), 0)
    jobs_per_worker = Key(count, 1)
    scale_down_delay = Key(duration, 30.0)
    idle_timeout = Key(duration, 300.0)
    capabilities = Key[list[str]](listed(text(_capability), _distinct), [])
    min_priority = Key[int | None](whole(-MAX_PRIORITY, MAX_PRIORITY), None)
    hosts = Key[list[str]](listed(text(host_pattern), _distinct), [])
    prefetch = Key(whole(1, 256, auto=True), None)
    concurrency = Key(whole(1, MOST_AT_ONCE), 1)
    batch_size = Key[int | None](whole(1, MOST_IN_A_BATCH, auto=True), 1)
    max_batch_size = Key(whole(2, MOST_IN_A_BATCH), MOST_IN_A_BATCH)
    latency_target = Key(wait, 0.2)
    batch_wait = Key(duration, 0.02)
    batch_key = Key[str | None](text(_path), None)
    batch_cost = Key[str | None](text(_path), None)
    batch_budget = Key[float | None](number(0.0, 1e15), None)
    timeout = Key(wait, 120.0)
    cancel_grace = Key(duration, CANCEL_GRACE)
    kill_grace = Key(duration, KILL_GRACE)
    startup_timeout = Key(wait, 300.0)
    shutdown_grace = Key(duration, 30.0)
    heartbeat_timeout = Key(patience, 60.0)
    lock_time = Key(patience, 60.0)
    max_jobs_per_worker = Key[int | None](count, None)
    max_memory = Key[int | None](_memory, None)
    memory_budget = Key[int | None](_memory, None)
    keep_freed_memory = Key[int | None](_kept, None)
    max_crashes = Key(count, 3)
    max_waiting = Key[int | None](whole(1, MAX_WAITING), None)
    start = Key[Any](one_of("fork", "spawn"), "fork")
    preload = Key(boolean, True)
    preload_setup = Key(boolean, False)
    gpus = Key[list[str]](listed(_device, _distinct), [])
    threads = Key(whole(1, MOST_THREADS, auto=True), None)
    cpu_affinity = Key[list[int]](listed(whole(0, MOST_CORES - 1), _distinct), [])
    nice = Key(whole(0, 19), 0)
    path = Key[list[str]](listed(text(_folder), _distinct), [])
    env = Key[dict[str, str]](named(_variable, text(_variable_value)), {})
    recover = Key[Any](one_of("pending", "failed"), "pending")
    retry = Inner(RetryTable)
    give_up_on = Key[list[str]](listed(text(_exception), _distinct), [])
    retry_failed_every = Key(duration, 0.0)
    retry_failed_times = Key(whole(1, MAX_ATTEMPTS), 3)
    middleware = Key[list[str]](listed(text(_middleware), _distinct), [])
    warmup = Inner(WarmupTable)
    canary = Inner(CanaryTable)
    options = Key[dict[str, Any]](named(text(), anything), {})


NAMING = frozenset({"types", "handler", "tasks", "command"})
"""Keys that identify a pool, and so cannot have a default."""


class TypeTable(Table):
    """`[types.NAME]`: what may differ between the types of a pool."""

    timeout = Key[float | None](wait, None)
    retry = Inner(RetryTable)
    max_attempts = Key[int | None](whole(1, MAX_ATTEMPTS), None)
    give_up_on = Key[list[str]](listed(text(_exception), _distinct), [])


class ScheduleTable(Table):
    """One of `[[schedules]]`; `schedules.py` checks the rules between its keys."""

    name = Key(text(_schedule_name), "")
    type = Key(text(_type), "")
    payload = Key(_payload, "{}")
    cron = Key[str | None](_cron, None)
    every = Key[float | None](_duration(at_least=1.0), None)
    timezone = Key(text(_timezone), "UTC")
    misfire = Key[Any](one_of("once", "skip", "all"), "once")
    unique_key = Key[str | None](_unique_key, None)


class AlertTable(Table):
    """One of `[[alerts]]`; `alerts.py` checks the rules between its keys."""

    when = Key[tuple[str, float]](_when, ("", 0.0))
    enqueue = Key(text(_type), "")
    payload = Key(_payload, "{}")
    every = Key(_duration(at_least=1.0), 600.0)
    only = Key[list[str]](listed(text(), _distinct), [])


class RetentionTable(Table):
    done = Key[float | None](_retention, 7 * _DAY)
    failed = Key[float | None](_retention, 30 * _DAY)


class AdminTable(Table):
    """`[admin]`; `admin.py` checks the rules between its keys."""

    listen = Key(text(addresses.listen), "127.0.0.1:8787")
    token_file = Key[str | None](text(addresses.file), None)
    read_token_file = Key[str | None](text(addresses.file), None)
    hosts = Key[list[str]](listed(text(addresses.host), _distinct), [])
    show_payloads = Key(boolean, False)
    allow_remote = Key(boolean, False)


class MachineTable(Table):
    """`[machine]`: the memory that all pools share."""

    memory = Key[int | None](_memory, None)
    min_residency = Key(patience, 30.0)
    max_wait = Key(duration, 60.0)


class DeviceTable(Table):
    """`[devices.NAME]`: the memory of one of the pools' `gpus`."""

    memory = Key[int | None](_memory, None)


class SpoolTable(Table):
    """`[spool]`: the files that are sent to `POST /run`; `spool.py` checks the rules between its keys."""

    folder = Key[str | None](text(addresses.file), None)
    max_file = Key(_memory, 64 << 20)
    max_total = Key(_memory, 1 << 30)
    done = Key[float | None](_retention, 600.0)


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
