"""What a value of `supervisor.toml` may be: durations, sizes, names, addresses.

A check returns the value to use, or raises ValueError with the end of a sentence that starts with the key. Its
docstring says what it accepts, for docs/keys.md. They are plain functions: every command reads the configuration, and a
validation library takes longer to import than most commands take to run.
"""

from __future__ import annotations

import os
import re
import reprlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from supervisor.domain.alerts import WHEN
from supervisor.domain.limits import interval_of
from supervisor.domain.schedule import Schedule, zone
from supervisor.domain.text import human, human_size, is_number, seconds, size, unknown_url, without_driver
from supervisor.domain.values import TYPE, encode

Way = tuple[str | int, ...]
"""The path to a value: ("pools", "tag", "timeout"), ("schedules", 0, "name")."""

_Value = TypeVar("_Value")
Check = Callable[[Any], _Value]

LONGEST = 36_500 * 86_400.0  # seconds; a hundred years: beyond it, sums with clocks become meaningless
SMALLEST = 1 << 20  # bytes; no Python process is smaller, so such a limit would replace workers forever


class Key(NamedTuple):
    """A key of a table: what its value may be (a mapping: the keys of a table inside it), the value without it, and
    what it is about, for docs/keys.md and `--help`.
    """

    check: Check[Any] | Keys | Tables | Entries
    default: Any = None
    about: str = ""


Keys: TypeAlias = Mapping[str, Key]


class Tables(NamedTuple):
    """Tables with names of the user's own, such as [pools.NAME], which have these keys. `name` checks the names."""

    keys: Keys
    name: Check[Any] = lambda name: name


class Entries(NamedTuple):
    """An array of tables, such as [[schedules]], which have these keys. Some of them are required."""

    keys: Keys
    required: tuple[str, ...]


def usable_cores() -> frozenset[int]:
    """The numbers of the cores on which we may run; of all where the system does not say, which is not Linux then."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def shown(value: object) -> str:
    """A value from the file, short enough for a line. A text is shown in quotes."""
    try:
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else _REPR.repr(value)
    except (ValueError, RecursionError):  # Python does not convert numbers with thousands of digits
        return "such a large value"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxdict = _REPR.maxlist = 3
_REPR.maxlevel = 2


def refused(must: str, value: Any) -> ValueError:
    return ValueError(f"{must}, not {shown(value)}")


def accepting(what: str, check: Check[_Value]) -> Check[_Value]:
    check.__doc__ = what
    return check


# Values of any kind


def anything(value: Any) -> Any:
    """any value"""
    return value


def of_kind(kind: type[Any], must: str, *rules: Check[Any]) -> Check[Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise refused(must, value)
        for rule in rules:
            value = rule(value)
        return value

    return accepting(must.removeprefix("must be "), check)


boolean = of_kind(bool, "must be true or false")
table = of_kind(dict, "must be a table")
_list = of_kind(list, 'must be a list, like ["a", "b"]')


def text(*rules: Check[str]) -> Check[str]:
    return of_kind(str, 'must be text in quotes, like "text"', *rules)


def matching(pattern: re.Pattern[str] | str, what: str) -> Check[str]:
    def rule(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return accepting(what, text(rule))


def number(least: float, most: float, kind: type[float] = float) -> Check[float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            raise refused("must be a whole number" if kind is int else "must be a number", value)
        if not value >= least:  # or no number at all: nan
            raise refused(f"must be at least {least}", value)
        if value > most:
            raise refused(f"must be at most {most}", value)
        return kind(value)

    bounds = f"{least} to {most:,}" if most < 1e15 else f"at least {least}"
    return accepting(f"a {'whole ' * (kind is int)}number, {bounds}", check)


def whole(least: int, most: int) -> Check[float]:
    return number(least, most, int)


def unless(word: str, check: Check[_Value]) -> Check[_Value | None]:
    """The word stands for None."""

    def checked(value: Any) -> _Value | None:
        try:
            return None if value == word else check(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "{word}"') from None

    return accepting(f'{check.__doc__}, or "{word}"', checked)


def one_of(*words: str) -> Check[str]:
    expected = ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise refused(f"must be {expected}", value)
        return value

    return accepting(expected, check)


def listed(item: Check[_Value], *, least: int = 0, repeats: bool = False) -> Check[tuple[_Value, ...]]:
    def check(value: Any) -> tuple[_Value, ...]:
        values = _each((item, "", each) for each in _list(value))
        for index, each in enumerate(values):
            if not repeats and each in values[:index]:
                raise ValueError(f"{each!r} is listed twice")
        if len(values) < least:
            raise ValueError("the list is empty; omit the key instead")
        return tuple(values)

    return accepting(f"a list; each is {item.__doc__}", check)


def named(name: Check[str], value: Check[_Value]) -> Check[dict[str, _Value]]:
    """A table with names of the user's own."""

    def check(given: Any) -> dict[str, _Value]:
        _each((name, "", key) for key in table(given))
        return dict(zip(given, _each((value, f"{key}: ", each) for key, each in given.items()), strict=True))

    return accepting("a table", check)


def _each(parts: Iterable[tuple[Check[_Value], str, Any]]) -> list[_Value]:
    """The values of these parts: the check of each, what its problem begins with, and the value."""
    values, problems = [], []
    for check, whose, value in parts:
        try:
            values.append(check(value))
        except ValueError as error:
            problems.append(f"{whose}{error}")
    if problems:
        raise ValueError("; ".join(problems))
    return values


# Durations and sizes


def duration_from(at_least: float = 0.0) -> Check[float]:
    def check(value: object) -> float:
        if not isinstance(value, str):  # 500 could mean milliseconds as well as seconds
            raise ValueError(f"{shown(value)} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
        length = seconds(value)
        if not at_least <= length <= LONGEST:
            raise ValueError(f"{value!r} is out of range; it must be from {human(at_least)} to 36500d")
        return length

    return accepting(f"a duration{f', at least {human(at_least)}' if at_least else ''}", check)


DAY = 86_400.0
duration = duration_from()
limit = duration_from(at_least=0.001)
patience = duration_from(at_least=1.0)


retention = unless("forever", duration)


_RATE = 'a rate; write it like "50/s", "100/m" or "1/5s"'
rate = accepting(_RATE, lambda value: interval_of(text()(value)))  # seconds between two starts


def memory(value: Any) -> int:
    """a size, at least 1MiB"""
    found = size(value)
    if not SMALLEST <= found < 1 << 63:
        raise ValueError(f"{value!r} is out of range; it must be at least {human_size(SMALLEST)}")
    return found


# Names

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
NAME = r"[a-z0-9_.-]{1,100}"  # of a pool or a schedule

handler = matching(f"{_DOTTED}:{_DOTTED}", 'a handler; write module:attribute, like "jobs:greet"')
middleware = matching(f"{_DOTTED}:{_DOTTED}", 'a middleware; write module:attribute, like "tracing:Tracing"')
module = matching(_DOTTED, 'a module; write it like "jobs" or "mail.jobs"')
exception = matching(_DOTTED, 'the name of an exception; write it like "ValueError" or "requests.Timeout"')
job_type = matching(TYPE, "a type; a type has 1 to 100 characters of a-z A-Z 0-9 _ . : / -")
capability = matching(
    r"[!-+\--~]{1,100}", "a capability; one has 1 to 100 printable ASCII characters, no space and no comma"
)
schedule_name = matching(NAME, "a valid name; it must have 1 to 100 characters of a-z 0-9 _ . -")
argument = accepting("text", matching(r"[^\0]*", "text for a program: it contains a NUL character"))
variable = matching(r"[^=\0]+", "the name of an environment variable")
folder = matching(rf"(?=.*\S)[^\0{os.pathsep}]+", 'a folder; write it like "src"')
file_name = matching(r"(?=.*\S)[^\0]*[^\0/]", "the name of a file")
field_path = matching(
    r"[^.]*[^.\s][^.]*(\.[^.]*[^.\s][^.]*)*", 'a field of a payload; write it like "model" or "options.model"'
)
host_name = matching(
    r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]",
    "a host name; write it like jobs.example.org, without a scheme or a port",
)
host_pattern = matching(
    r"[A-Za-z0-9_.:*?\[\]!-]{1,253}", 'the name of a host; write it like "gpu-1", or "gpu-*" for all that begin so'
)


_device = matching(
    r"\d{1,4}|[A-Za-z][A-Za-z0-9_./:-]{0,99}", 'a device; write its number, or its id like "GPU-8932f937" or "MIG-…"'
)
device = accepting(_device.__doc__ or "", lambda value: _device(str(value) if type(value) is int else value))


def _address(value: str) -> str:
    import ipaddress

    if value.startswith("unix:"):
        valid = value[5:].strip() and "\0" not in value and not value.endswith("/")
    else:
        host, _, port = value.rpartition(":")
        version = 6 if host[:1] == "[" and host[-1:] == "]" else 4
        try:
            ip = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
            valid = ip.version == version and is_number(port) and int(port) <= 65535
        except ValueError:
            valid = False
    if not valid:
        raise ValueError(
            f'{value!r} is not an address; write it like "127.0.0.1:8787", "[::1]:8787" or "unix:admin.sock"'
        )
    return value


listen_address = accepting('an address; write it like "127.0.0.1:8787" or "unix:admin.sock"', text(_address))


# Jobs, schedules and alerts


def payload(value: object) -> str:
    """any JSON value"""
    return encode("payload", value)


def _zone(name: str) -> str:
    zone(name)  # also raises NoTimeZones
    return name


def _cron(line: str) -> str:
    next(Schedule("", "", "", line, None, "UTC", "once").after(time.time()))
    return line


timezone = accepting('a time zone; write it like "Europe/Berlin"', text(_zone))
cron = accepting('five fields; write them like "30 3 * * *"', text(_cron))


def alert_when(value: object) -> tuple[str, float]:  # and the seconds of "oldest_due > 5m"
    name, sign, length = (part.strip() for part in (value if isinstance(value, str) else "").partition(">"))
    if name not in WHEN or (sign == ">") != (name == "oldest_due"):
        names = ", ".join(repr(name) for name in WHEN if name != "oldest_due")
        raise refused(f"must be {names} or 'oldest_due > 5m'", value)
    return name, limit(length) if sign else 0.0


alert_when.__doc__ = ", ".join(repr(name) for name in WHEN if name != "oldest_due") + " or 'oldest_due > 5m'"


# The database's address


def absolute(url: str, folder: Path) -> str:
    """`sqlite:////absolute/path` without links for a URL whose relative path starts at `folder`; a server's URL as it
    is.

    The path is taken as written: nothing else in it is decoded or expanded. Raises ValueError with one sentence.
    """
    if of_server(url):
        return server(url)
    url = without_driver(url)
    # SQLite itself makes a private database of these; its rows would be lost with each connection.
    if url in ("sqlite:", "sqlite://", "sqlite:///") or ":memory:" in url or "mode=memory" in url:
        raise ValueError("in-memory databases are not supported, as processes cannot share them; name a file")
    if not url.startswith("sqlite:///"):
        raise ValueError(unknown_url(url))
    path = url.removeprefix("sqlite:///")
    if "?" in path or "#" in path:
        raise ValueError("parameters after the file's name are not supported; leave out ? and #")
    if not path.isprintable() or path.endswith("/") or path.rpartition("/")[2] in (".", ".."):
        raise ValueError(f"{path!r} is not the name of a file")
    return f"sqlite:///{os.path.realpath(folder / path)}"


def of_server(url: object) -> bool:
    """Whether it is meant as the URL of a server."""
    return isinstance(url, str) and without_driver(url).partition(":")[0].lower() in ("postgresql", "postgres")


def server(url: str) -> str:
    """The URL of a server. Raises ValueError with one sentence."""
    url = without_driver(url)
    if not url.startswith(("postgresql://", "postgres://")) or not url.isprintable() or " " in url:
        raise ValueError(unknown_url(url))
    return url
