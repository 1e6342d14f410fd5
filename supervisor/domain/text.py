"""Texts for people and from other programs: durations, sizes, URLs, messages, and values of rows made safe to show."""

from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from json import JSONEncoder
from typing import Any, NoReturn

LONGEST_DELAY = 36_500 * 86_400.0  # seconds; a hundred years: the table rejects later times

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?(B|KiB|MiB|GiB|TiB)")


def seconds(value: str | float) -> float:
    """A duration in seconds. Numbers are already seconds.

    Raises ValueError for anything else, and for numbers that are negative or too large to be a time.
    """
    written = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if written is not None:
        amount = float(written[1]) * _UNITS[written[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        amount = float(value) if 0 <= value <= sys.float_info.max else math.inf
    else:
        raise ValueError(f"{value!r} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
    if not math.isfinite(amount):
        raise ValueError(f"{value!r} is not a duration; it must be finite and not negative")
    return amount


def size(value: str) -> int:
    """A size in bytes, from text like `512MiB`. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write it like 512MiB or 2GiB")
    exact = float(match[1]) * _SIZES[match[2]]
    if not math.isfinite(exact):
        raise ValueError("it is larger than any memory")
    return int(exact)


def human(value: float) -> str:
    """Seconds as a short text for people: `3.2s`, `5m`, `2h`, `7d`."""
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    for unit in ("d", "h", "m"):
        if value >= _UNITS[unit] * (1 if unit == "d" else 1.5):
            return f"{_short(value / _UNITS[unit])}{unit}"
    return f"{_short(value)}s"


def utc(at: float) -> str:
    """Unix seconds as a time of UTC; as they are if that is no time."""
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(at)


def human_size(value: float) -> str:
    """Bytes as a short text for people: `812KiB`, `1.4GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value >= _SIZES[unit]:
            return f"{_short(value / _SIZES[unit])}{unit}"
    return f"{value:.0f}B"


def _short(value: float) -> str:
    """Three digits, but never an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


MAX_MESSAGE = 2000  # characters of a message
MAX_NAME = 200  # characters of a name from a row; valid names have 100 at most
_MOST_NAMED = 5  # reasons in a message


def is_number(text: str) -> bool:
    """Whether it is decimal digits alone: `int` also takes digits of other scripts, blanks and underscores."""
    return text.isascii() and text.isdecimal()


def text_of(value: object, limit: int = MAX_NAME) -> str:
    """A text of bounded length, from a row or a supervisor's status that any program may have written."""
    text = _as_text(value, limit)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _as_text(value: object, limit: int) -> str:
    return bytes(value[: 4 * limit]).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def shortened(text: str, most: int = MAX_MESSAGE) -> str:
    """The text, or its beginning and the number of missing characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def final_lines(text: str | bytes | None) -> str:
    """A log as a terminal finally shows it: a rewritten line, such as a progress bar, keeps its last state only."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
    return "\n".join(part.rstrip("\r").rpartition("\r")[2] for part in text.rstrip().split("\n"))


def counted(number: int, one: str, more: str = "") -> str:
    """`1 job`, `37 jobs`; `more` is the plural if it is not `one` with an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def pending_again(jobs: int, skipped: int, duplicates: int) -> str:
    """The result of a retry of many jobs."""
    held = f", {duplicates} not retried because unfinished jobs have their unique keys" if duplicates else ""
    return counted(jobs, "job") + " pending again" + (f", {skipped} skipped" if skipped else "") + held


def not_retried(jobs: Sequence[int], changed: int, duplicates: Mapping[int, int]) -> str:
    """Why some of these jobs were not retried. `duplicates` are the unfinished jobs that have the keys of some."""
    reasons = [f"the unfinished job {other} has the unique key of job {job}" for job, other in duplicates.items()]
    missing = len(jobs) - changed
    if missing > len(duplicates):
        reasons.append(f"the state of {missing - len(duplicates)} has just changed")
    more = f" and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    which = f"job {jobs[0]} was" if len(jobs) == 1 else f"{missing} of {len(jobs)} jobs were"
    return f"{which} not retried: {', '.join(reasons[:_MOST_NAMED])}{more}"


def untaken(type_: str, known: Iterable[str], waits: str = "") -> str:
    """That no pool takes a type, how many jobs of it wait, and the one of these that is probably meant."""
    return f"no pool takes the type {type_}{waits}{like(type_, sorted(known))}"


def no_pool(name: str, pools: Iterable[str]) -> str:
    """That there is no pool with this name, with those that there are."""
    known = list(pools)
    return f"there is no pool {name!r}; there are {', '.join(known)}{like(name, known)}"


def like(name: str, known: Iterable[str]) -> str:
    """`; did you mean tag?`, for the end of a sentence, if one of these has a letter or two wrong; otherwise empty."""
    import difflib  # imported here: only needed for misspelt names

    right = max(len(name), 3) - (1 if len(name) < 5 else 2)  # long names of one module have most letters in common
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=right / max(len(name), 3))
    return f"; did you mean {near[0]}?" if near else ""


compact_json = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""The JSON of a value without white space. Created once and used by name: a handler that replaces `json.dumps` must not
affect the jobs after it.
"""


def refuse_constant(constant: str) -> NoReturn:
    """For `json.loads(text, parse_constant=…)`, which would take NaN and Infinity for JSON. Raises ValueError."""
    raise ValueError(f"{constant} is not part of JSON")


# Text from any source, made safe for a terminal. Pure.
#
# All text from rows, handlers and other programs passes through `clean`, in the command line and in the log for people.
# Then no text can start a new line, move the cursor, or change the writing direction of what follows.

MAX_CELL = 300  # characters of a value in a list
MAX_VALUE = 100_000  # of a value that is shown alone
INDENT = "  "


def clean(text: object, newline: str = "\\n", *, limit: int = MAX_VALUE) -> str:
    """One line without control characters, direction marks and lone surrogates, of at most `limit` characters.

    Characters that cannot be shown appear as escapes: `\\x1b`, `\\u202e`.
    """
    text = _as_text(text, limit)
    if len(text) > limit:
        text = f"{text[:limit]}… {len(text) - limit:,} more characters"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else newline if char == "\n" else ascii(char)[1:-1] for char in text)


def clean_lines(text: object, *, limit: int = MAX_VALUE) -> str:
    """The same for a text of several lines, like a traceback: each is indented, so that none looks like our own."""
    text = _as_text(text, limit)
    if len(text) > limit:
        text = f"… {len(text) - limit:,} characters before\n{text[-limit:]}"
    return "\n".join(INDENT + clean(part.expandtabs()) for part in text.split("\n"))


_DEEPEST = 100  # levels of a stored value that are shown: many parsers accept no more than twice as many


def json_safe(value: Any, depth: int = 0) -> Any:
    """The same value without bytes, infinities, deep nesting, or text that UTF-8 cannot encode."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return value
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # one of our own values
    if isinstance(value, dict):
        return {_encodable(str(key)): json_safe(item, depth + 1) for key, item in value.items()}
    items = sorted(value) if isinstance(value, (set, frozenset)) else value
    return [json_safe(item, depth + 1) for item in items]


def _encodable(value: str) -> str:
    """Without lone surrogates, which JSON's \\u escapes can produce and UTF-8 cannot encode."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


SQLITE_URL = "sqlite:///./jobs.db"
SERVER_URL = "postgresql://user@host/database"
_SECRETS = ("password=", "sslpassword=")


def without_password(url: str) -> str:
    """The URL without the password that may stand before an @ or among the parameters; a file's is unchanged."""
    scheme, mark, rest = url.partition("://")
    if not scheme.startswith("postgres") or not mark:
        return url
    rest, question, parameters = rest.partition("?")
    who, at, where = rest.rpartition("@")
    shown = f"{scheme}://{who.partition(':')[0]}{at}{where}"
    kept = "&".join(part for part in parameters.split("&") if not part.startswith(_SECRETS))
    return shown + (question + kept if kept else "")


def without_driver(url: str) -> str:
    """The URL as we write it, for one of SQLAlchemy's like postgresql+psycopg://host/database."""
    if "+" not in url:
        return url
    return re.sub(r"^(postgres(?:ql)?|sqlite)\+\w+(?=:)", r"\1", url, flags=re.IGNORECASE)


def unknown_url(url: str) -> str:
    """One sentence about a URL of no engine, without what may be a user name or a password: before an @, or among the
    parameters.
    """
    start, at, end = url.partition("?")[0].rpartition("@")
    scheme, mark, _ = start.partition("://")
    shown = (f"{scheme if mark else ''}{mark}…@{end}" if at else end) + ("?…" if "?" in url else "")
    return f"{shown!r} is not an SQLite or PostgreSQL URL; write it like {SQLITE_URL} or {SERVER_URL}"


_LONGEST = 300  # characters that are compared

# In this order: quoted text may contain a path, and a path may contain numbers. Compiled on first use: every command
# loads this module, and few need them.
_VARIABLE = (
    (r"""(?<!\w)(?:'[^'\n]{0,200}'|"[^"\n]{0,200}"|`[^`\n]{0,200}`)(?!\w)""", "“…”"),
    (r"(?i)[a-z][a-z0-9+.-]{1,20}://[^\s,;)\]>]+", "url"),
    (r"(?<![\w.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@%+~-]+)+[/\\]?", "path"),
    (r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "#"),
    (r"(?i)\b0x[0-9a-f]+\b", "#"),
    (r"(?i)\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "#"),
    (r"[+-]?\d+(?:[.,:_]\d+)*", "#"),
)


def fingerprint(message: str) -> str:
    """The message without its variable parts: numbers, hexadecimal ids, quoted text, paths and URLs."""
    text = " ".join(message[: 2 * _LONGEST].split())
    for pattern, word in _VARIABLE:
        text = re.sub(pattern, word, text)
    return text[:_LONGEST]
