"""Numbers, times and values as people read them on a page. Pure: the caller says what time it is."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

from supervisor.domain.duration import human_size
from supervisor.ops.status import text_of

NOTHING = "–"
_LONGEST = 60_000  # characters of one value: a page is to be read
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
    raise AssertionError("not reached: an hour is the smallest of them")


def age(at: float | None, now: float) -> str:
    """A moment, seen from now: `just now`, `42 s ago`, `in 5 min`."""
    if at is None or not math.isfinite(at):
        return NOTHING
    ago = now - at
    if abs(ago) < 1:
        return "just now" if ago >= 0 else "now"
    return f"{whole_span(ago)} ago" if ago > 0 else f"in {whole_span(-ago)}"


def whole_span(seconds: float) -> str:
    """The same without fractions of a second, which nobody wants of an age."""
    return span(seconds) if seconds >= 9.95 else f"{max(1, math.floor(seconds))} s"


def absolute(at: object) -> str:
    """A stored time in the zone of this machine, which is named. Other programs may have stored anything."""
    moment = _moment(at)
    if moment is None:
        return NOTHING if at is None else text_of(at)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def iso(at: object) -> str:
    """For the `datetime` of a <time>; empty for what is no time."""
    moment = _moment(at)
    return "" if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(at: float) -> str:
    moment = _moment(at)
    return NOTHING if moment is None else moment.astimezone().strftime("%H:%M")


def time_of_day(at: float, now: float) -> str:
    """`20:41:33`, with the day before it if that is not today."""
    then, today = _moment(at), _moment(now)
    if then is None or today is None:
        return NOTHING
    then, today = then.astimezone(), today.astimezone()
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    """`12,345`; of what is no whole number two digits that tell."""
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


def pretty(value: Any) -> str:
    """A payload or a result, indented; of one that is too long for a page, the beginning."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return cut(text)


def cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n… {number(len(text) - _LONGEST)} more characters"


def final(text: str | bytes | None) -> str:
    """A log as a terminal shows it in the end: of a line written anew, as progress bars are, its last state."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
    return "\n".join(part.rstrip("\r").rpartition("\r")[2] for part in text.rstrip().split("\n"))


def timing(stored: str) -> str:
    """When a schedule fires, from the text of its row: `every 5 min`, `0 3 * * * (Europe/Berlin)`."""
    try:
        cron, every, timezone = json.loads(stored)
        return f"every {span(float(every))}" if every is not None else f"{cron} ({timezone})"
    except (ValueError, TypeError):
        return text_of(stored)


def fragment(message: str) -> str:
    """The longest part of a message without numbers, paths and quotes: its like have it too, so it finds them."""
    return max((part.strip() for part in _VARIABLE.split(message)), key=len, default="")


def _moment(at: object) -> datetime.datetime | None:
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        return None
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
        moment.astimezone()  # where the zone leads out of what a calendar knows
        return moment
    except (OverflowError, ValueError, OSError):
        return None
