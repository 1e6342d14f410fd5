"""What a large screen shows beside or below the tables: charts of the last hour, and the log of a job. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.text import Text

from supervisor.cli.top.poller import Seen
from supervisor.cli.top.view import Subject
from supervisor.domain.history import HOUR, MINUTE, Minute, minute_of
from supervisor.domain.text import clean, final_lines

LEAST = 5  # lines for a log to be worth showing
_WITH_CHARTS = 16  # lines for charts and a log
_BARS = " ▁▂▃▄▅▆▇█"


def side(seen: Seen, subject: Subject | None, width: int, height: int) -> list[Text]:
    """Exactly `height` lines of at most `width` cells."""
    lines = _charts(seen.minutes, seen.overview.time if seen.overview else 0.0, width, height)
    lines += log_lines(seen, subject, width, height - len(lines))
    return [*lines, *(Text("") for _ in range(height - len(lines)))][:height]


def log_lines(seen: Seen, subject: Subject | None, width: int, height: int) -> list[Text]:
    """A heading, and the end of what the subject's job has printed."""
    if height < 2:
        return []
    if subject is None:
        return [_line("no job is running", width, "dim")]
    heading = _line(f"LOG OF JOB {subject.job}, {subject.worker}", width, "bold")
    known = seen.log is not None and seen.log[0] == subject.job
    text = seen.log[1] if seen.log is not None and known else None
    if not text:
        return [heading, _line("nothing yet" if known else "…", width, "dim")]
    said = final_lines(text[-height * 1000 :]).split("\n")
    return [heading, *(_line(line.expandtabs(), width) for line in said[-(height - 1) :])]


def _charts(minutes: Iterable[Minute], now: float, width: int, height: int) -> list[Text]:
    """Each chart has a title, its bars, and an empty line."""
    if height < _WITH_CHARTS:
        return []
    rows = min(6, (height - LEAST) // 6)
    done, failed, waiting = (_series(minutes, name, now) for name in ("done", "failed", "waiting"))
    lines: list[Text] = []
    for title, series, style in (
        ("DONE A MINUTE", done, "green"),
        ("FAILED ATTEMPTS A MINUTE", failed, "red"),
        ("WAITING", waiting, "yellow"),
    ):
        latest = f"{series[-1]:,} now, {max(series):,} at most in the last hour"
        lines.append(Text.assemble((title, "bold"), "  ", (latest, "dim"), no_wrap=True, overflow="ellipsis"))
        lines += [Text(bar, style=style, no_wrap=True) for bar in chart(series, width, rows)]
        lines.append(Text(""))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _series(minutes: Iterable[Minute], name: str, now: float) -> list[int]:
    """One number for each of the last sixty full minutes, of all types together."""
    of_minute: dict[float, int] = defaultdict(int)
    for minute in minutes:
        of_minute[minute.at] += getattr(minute, name)
    last = minute_of(now) - MINUTE
    return [of_minute[last - MINUTE * back] for back in range(int(HOUR / MINUTE) - 1, -1, -1)]


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """Bars, the latest value on the right, each as wide as there is room for. The highest one has the full height."""
    if width < 1 or not values:
        return [""] * height
    each = max(1, width // len(values))
    most = max(1, *values)
    lines = []
    for row in range(height - 1, -1, -1):
        lines.append(
            "".join(_bar(value / most * height * 8 - row * 8, row) * each for value in values[-width:]).rstrip()
        )
    return lines


def _bar(eighths: float, row: int) -> str:
    """One cell of a bar that ends so many eighths above its bottom; what is above 0 is seen."""
    if row or eighths <= 0:
        return _BARS[min(8, max(0, round(eighths)))] if row else "·"
    return _BARS[min(8, max(1, round(eighths)))]


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(clean(text, " ", limit=1000), style=style, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line
