"""Structured events on stderr: JSON for machines, one readable line for a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

__all__ = ["configure", "events"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Set structlog up for this process and those forked from it.

    `format` is "json", "console", or "auto": console on a terminal, JSON elsewhere.
    """
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=out.isatty()) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not console),
            *(() if console else (structlog.processors.format_exc_info,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Forgiving(out))),
        cache_logger_on_first_use=False,
    )


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


def events(**fields: Any) -> Any:
    """A logger with these fields on every event."""
    return structlog.get_logger(**fields)
