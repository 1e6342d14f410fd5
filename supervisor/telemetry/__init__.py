"""Structured events on stderr: JSON for machines, one readable line for a terminal."""

from __future__ import annotations

import contextlib
import datetime
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO, cast

from supervisor.domain.printable import clean, clean_lines

# structlog imports rich wherever that is installed, which takes as long as all the rest of it; we use nothing of it.
_rich_missing = "rich" not in sys.modules
if _rich_missing:
    sys.modules["rich"] = None  # type: ignore[assignment]  # means: it cannot be imported
try:
    import structlog
finally:
    if _rich_missing:
        del sys.modules["rich"]

__all__ = ["configure", "events"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_PLAIN = frozenset({"event", "timestamp", "level"})  # shown as they are, where the others may need quotes
_OURS = frozenset({"job", "jobs", "pool", "worker"})  # fields of events that `events` keeps itself, or that are ours


def configure(
    format: str = "auto",
    level: str = "info",
    stream: TextIO | None = None,
    *,
    keep: Callable[[str], None] | None = None,
) -> None:
    """Set structlog up for this process and those forked from it.

    `format` is "json", "console", or "auto": console on a terminal, JSON elsewhere. `keep` gets what a handler
    logs through loggers of its own, as lines.
    """
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    renderer: Any = structlog.processors.JSONRenderer()
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *(() if keep is None else (_keeper(keep),)),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not console),
            structlog.processors.format_exc_info,
            *((_printable,) if console else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Forgiving(out))),
        cache_logger_on_first_use=False,
    )


def _keeper(keep: Callable[[str], None]) -> structlog.typing.Processor:
    def kept(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _OURS.isdisjoint(event):
            keep(_line(level, event, {}))
        return event

    return kept


def _printable(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event for a terminal: no field of it, whoever wrote that, can begin a line or command the terminal."""
    shown: dict[str, Any] = {}
    for name, value in event.items():
        if name in ("exception", "stack"):
            shown[name] = clean_lines(value)
        else:
            shown[clean(name)] = clean(value) if name in _PLAIN else clean(_value(value))
    return shown


class _Forgiving:
    """A stream for events. One that cannot be written, to a full disk or a reader that is gone, is lost: it must
    not end the process that it tells of.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def events(*, keep: Callable[[str], None] | None = None, **fields: Any) -> Any:
    """A logger with these fields on every event. `keep` gets each event, too, as a line without them."""
    if keep is None:
        return structlog.get_logger(**fields)

    def kept(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        keep(_line(level, event, fields))
        return event

    processors = [structlog.contextvars.merge_contextvars, kept, *structlog.get_config()["processors"]]
    return structlog.wrap_logger(None, processors=processors, **fields)


def _line(level: str, event: MutableMapping[str, Any], known: Mapping[str, Any]) -> str:
    """An event for people, with the time in UTC: `2026-11-21T18:08:54.123Z info tagging path=cat.jpg`."""
    fields = dict(structlog.processors.format_exc_info(None, level, dict(event)))
    message, stack = fields.pop("event", ""), fields.pop("exception", None)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    more = (f"{name}={_value(value)}" for name, value in fields.items() if name not in known)
    line = " ".join((f"{at}Z", level, str(message), *more))
    return f"{line}\n{stack}" if stack else line


def _value(value: object) -> str:
    """As it stands where that is one word; quoted otherwise."""
    text = str(value) if isinstance(value, str) else repr(value)
    return repr(text) if isinstance(value, str) and (not text or " " in text or not text.isprintable()) else text
