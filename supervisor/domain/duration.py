"""Durations and sizes as people write them: `250ms`, `10s`, `5m`, `2h`, `7d`; `512MiB`, `2GiB`."""

from __future__ import annotations

import math
import re

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
        number, unit = float(written[1]), _UNITS[written[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number, unit = _as_float(value), 1.0
    else:
        raise ValueError(f"{value!r} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
    if not math.isfinite(number * unit) or number < 0:
        raise ValueError(f"{value!r} is not a duration; it must be finite and not negative")
    return number * unit


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


def human_size(value: float) -> str:
    """Bytes as a short text for people: `812KiB`, `1.4GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value >= _SIZES[unit]:
            return f"{_short(value / _SIZES[unit])}{unit}"
    return f"{value:.0f}B"


def _short(value: float) -> str:
    """Three digits, but never an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
