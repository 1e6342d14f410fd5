"""The kinds of values in `supervisor.toml`: durations, sizes, names, addresses. Each is a check, see `values.py`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from supervisor.config.problems import shown
from supervisor.config.values import whole
from supervisor.domain.alerts import WHEN
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import checked_type, checked_unique_key, encode
from supervisor.domain.schedule import NoTimeZones, Schedule, zone
from supervisor.domain.text import human, human_size, is_number, seconds, size

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


def duration_from(at_least: float = 0.0) -> Callable[[object], float]:
    def validate(value: object) -> float:
        if not isinstance(value, str):  # 500 could mean milliseconds as well as seconds
            raise ValueError(f"{shown(value)} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
        length = seconds(value)
        if not at_least <= length <= LONGEST:
            raise ValueError(f"{value!r} is out of range; it must be from {human(at_least)} to 36500d")
        return length

    return validate


def retention(value: object) -> float | None:
    if value == FOR_EVER:
        return None
    try:
        return duration_from()(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "{FOR_EVER}"') from None


def memory(value: object) -> int:
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


def kept_memory(value: object) -> int:
    return 0 if value == "0" else memory(value)


handler = _matching(_HANDLER, 'a handler; write module:attribute, like "jobs:greet"')
module = _matching(_MODULE, 'a module; write it like "jobs" or "mail.jobs"')
exception = _matching(_MODULE, 'the name of an exception; write it like "ValueError" or "requests.Timeout"')
middleware = _matching(_HANDLER, 'a middleware; write module:attribute, like "tracing:Tracing"')


def argument(value: str) -> str:
    if "\0" in value:
        raise ValueError("a program's argument cannot contain a NUL character")
    return value


def command(values: list[str]) -> list[str]:
    if values and not values[0].strip():
        raise ValueError('it contains no program; write it like ["python3", "tag.py"]')
    return values


def job_type(value: str) -> str:
    try:
        return checked_type(value)
    except InvalidJob:
        raise ValueError(f"{value!r} is not a type; a type has 1 to 100 characters of a-z A-Z 0-9 _ . : / -") from None


def capability(value: str) -> str:
    if not _CAPABILITY.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a capability; one has 1 to 100 printable ASCII characters, no space and no comma"
        )
    return value


def distinct(values: list[_Listed]) -> list[_Listed]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} is listed twice")
    return values


def not_empty(values: list[str]) -> list[str]:
    if not values:
        raise ValueError("the list is empty; omit the key to use the pool's own name, or all its tasks")
    return values


def folder(value: str) -> str:
    if not value.strip() or "\0" in value or os.pathsep in value:
        raise ValueError(f'{value!r} is not a folder; write it like "src"')
    return value


def field_path(value: str) -> str:
    if not all(part.strip() for part in value.split(".")):
        raise ValueError(f'{value!r} is not a field of a payload; write it like "model" or "options.model"')
    return value


def device(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_CORES:
        value = str(value)
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise ValueError(f'{shown(value)} is not a device; write its number, or its id like "GPU-8932f937" or "MIG-…"')
    return value


def variable(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("an environment variable cannot have this name")
    return name


def variable_value(value: str) -> str:
    if "\0" in value:
        raise ValueError("an environment variable cannot contain a NUL character")
    return value


def schedule_name(value: str) -> str:
    if not _POOL_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid name; it must have 1 to 100 characters of a-z 0-9 _ . -")
    return value


def payload(value: Any) -> str:
    try:
        return encode("payload", value)
    except InvalidJob as error:
        raise ValueError(error.problem) from None


def unique_key(value: object) -> str | None:
    try:
        return checked_unique_key(value)
    except InvalidJob as error:
        raise ValueError(error.problem) from None


def alert_when(value: object) -> tuple[str, float]:
    """What an alert is about, and the seconds of "oldest_due > 5m"."""
    name, sign, length = (part.strip() for part in (value if isinstance(value, str) else "").partition(">"))
    if name not in WHEN or (sign == ">") != (name == "oldest_due"):
        raise ValueError(f"must be {_WHEN}, not {shown(value)}")
    return name, wait(length) if sign else 0.0


def timezone(value: str) -> str:
    with contextlib.suppress(NoTimeZones):  # told by `schedules.py`: on such a machine one may only enqueue
        zone(value)
    return value


def cron(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a cron line; write it like "30 3 * * *"')
    next(Schedule("", "", "", value, None, "UTC", "once").after(time.time()))
    return value


DAY = 86_400.0

duration = duration_from()
wait = duration_from(at_least=0.001)
patience = duration_from(at_least=1.0)
count = whole(1, 1 << 53)
number_of_workers = whole(1, MOST_WORKERS)


_HOST_PATTERN = re.compile(r"[A-Za-z0-9_.:*?\[\]!-]{1,253}")

_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]")
_LAST_PORT = 65535


def listen_address(value: str) -> str:
    import ipaddress

    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.strip() or "\0" in path or path.endswith("/"):
            raise ValueError(f'{value!r} contains no file; write it like "unix:/run/job-supervisor/admin.sock"')
        return value
    host_name, colon, port = value.rpartition(":")
    try:
        ipaddress.ip_address(
            host_name[1:-1] if host_name[:1] == "[" and host_name[-1:] == "]" else _version_4(host_name)
        )
    except ValueError:
        colon = ""
    if not colon or not is_number(port) or int(port) > _LAST_PORT:
        raise ValueError(
            f'{value!r} is not an address; write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"'
        )
    return value


def _version_4(host: str) -> str:
    if ":" in host:
        raise ValueError("an IPv6 address must be in brackets")
    return "127.0.0.1" if host == "localhost" else host


def file_name(value: str) -> str:
    if not value.strip() or "\0" in value or value.endswith("/"):
        raise ValueError(f"{value!r} is not the name of a file")
    return value


def host_name(value: str) -> str:
    if not _HOST_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a host name; write it like jobs.example.org, without a scheme or a port")
    return value.lower()


def host_pattern(value: str) -> str:
    """Raises ValueError for what no name of a host can match."""
    if not _HOST_PATTERN.fullmatch(value):
        raise ValueError(
            f'{value!r} is not the name of a host; write it like "gpu-1", or "gpu-*" for all that begin so'
        )
    return value
