"""Formats numbers, times and values for pages. Pure: the caller passes the current time."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

from supervisor.domain.text import human_size, text_of

NOTHING = "–"
SHOWN = {"stamp": "%Y-%m-%d %H:%M:%S", "clock": "%H:%M", "day": "%m-%d", "day-clock": "%m-%d %H:%M"}
_LONGEST = 60_000  # characters of one value, to keep pages readable
_EXACT = "%Y-%m-%d %H:%M:%S %Z"
_LONGEST_LINE = 2000  # characters of a message that are searched for its constant parts
_BRIEF = 200  # characters of a value in a table
_VARIABLE = re.compile(r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|\S*[\d/\\]\S*|\n""")  # quoted, numbers, paths, addresses
_UNITS = ((86_400.0, "d", 3600.0, "h"), (3600.0, "h", 60.0, "min"))


def span(seconds: float | None) -> str:
    """A length of time: `320 ms`, `4.2 s`, `12 min`, `3 h 20 min`, `4 d 3 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 3570:
        return f"{seconds / 60:.0f} min"
    for large, unit, small, rest in _UNITS:
        if seconds >= large - small / 2:
            whole, left = divmod(round(seconds / small), round(large / small))
            return f"{number(whole)} {unit}" + (f" {left} {rest}" if left and whole < 100 else "")
    raise AssertionError("not reached: an hour is the smallest unit here")


def age(at: float | None, now: float) -> str:
    """A time relative to now: `just now`, `42 s ago`, `in 5 min`."""
    if at is None or not math.isfinite(at):
        return NOTHING
    ago = now - at
    if abs(ago) < 1:
        return "just now" if ago >= 0 else "now"
    text = span(abs(ago)) if abs(ago) >= 9.95 else f"{max(1, math.floor(abs(ago)))} s"
    return f"{text} ago" if ago > 0 else f"in {text}"


def absolute(at: object) -> str:
    """A stored time in this machine's time zone, with its name, and in UTC. Programs may have stored any value."""
    moment = _moment(at)
    if moment is None:
        return NOTHING if at is None else text_of(at)
    local = moment.astimezone()
    return local.strftime(_EXACT) + ("" if local.tzname() == "UTC" else f" = {moment.strftime(_EXACT)}")


def iso(at: object) -> str:
    """For the `datetime` of a <time>; empty if the value is not a time."""
    moment = _moment(at)
    return "" if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(at: float, shows: str) -> str:
    """What a page shows of a time in this machine's time zone; see `SHOWN`."""
    moment = _moment(at)
    return NOTHING if moment is None else moment.astimezone().strftime(SHOWN[shows])


def number(value: float | None) -> str:
    """`12,345`; numbers that are not whole have two significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == int(value) or value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2g}" if value >= 0.01 else "0.01"


def size(value: float | None) -> str:
    """Bytes: `812 KiB`, `1.4 GiB`."""
    return NOTHING if value is None or not math.isfinite(value) else re.sub(r"(?<=\d)(?=[A-Z])", " ", human_size(value))


def percent(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{100 * min(1.0, max(0.0, value)):.0f} %"


def counted(count: float, one: str, many: str | None = None) -> str:
    """`1 job`, `37 jobs`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def sentence(text: str) -> str:
    """A fact or an advice as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def pretty(value: Any) -> str:
    """A payload or a result, indented; cut if it is too long for a page."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return cut(text)


def brief(value: Any) -> str:
    """A payload in one line of a table."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"


def cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n… {number(len(text) - _LONGEST)} more characters"


def timing(stored: str) -> str:
    """When a schedule fires, from the text of its row: `every 5 min`, `0 3 * * * (Europe/Berlin)`."""
    try:
        cron, every, timezone, *spread = json.loads(stored)
        later = f", up to {span(float(*spread))} later" if spread else ""
        often = f"every {span(float(every)).replace('.0 s', ' s')}" if every is not None else f"{cron} ({timezone})"
        return often + later
    except (ValueError, TypeError):
        return text_of(stored)


def fragment(message: str) -> str:
    """The longest part of a message without numbers, paths and quotes, used to find similar messages."""
    return max((part.strip() for part in _VARIABLE.split(message[:_LONGEST_LINE])), key=len, default="")


def _moment(at: object) -> datetime.datetime | None:
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        return None
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
        moment.astimezone()  # raises if the local time is out of range
        return moment
    except (OverflowError, ValueError, OSError):
        return None
