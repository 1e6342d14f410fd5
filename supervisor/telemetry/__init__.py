"""Structured events on stderr: JSON for machines, one readable line for a terminal."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TextIO, cast

from supervisor.domain.text import clean, clean_lines

# structlog imports rich if it is installed, which takes as long as everything else; we use nothing from it.
_rich_missing = "rich" not in sys.modules
if _rich_missing:
    sys.modules["rich"] = None  # type: ignore[assignment]  # means: it cannot be imported
try:
    import structlog
finally:
    if _rich_missing:
        del sys.modules["rich"]

__all__ = ["configure", "events", "unconfigure"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_PLAIN = frozenset({"event", "timestamp", "level"})  # shown as they are; the others may need quotes
_OURS = frozenset({"job", "jobs", "pool", "worker"})  # fields of events that `events` keeps, or that are our own


def configure(
    format: str = "auto",
    level: str = "info",
    stream: TextIO | None = None,
    *,
    keep: Callable[[str], None] | None = None,
    theirs: Stream | None = None,
) -> None:
    """Configure structlog for this process and those forked from it.

    `format` is "json", "console", or "auto": console on a terminal, JSON elsewhere. `keep` receives, as lines, what a
    handler logs through its own loggers; `theirs` is the stream for that and for what it logs through `ctx.log`, if it
    differs from the `stream` of our own events.
    """
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    renderer: Any = structlog.processors.JSONRenderer()
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    processors: tuple[Any, ...] = (
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
        structlog.processors.format_exc_info,
        *((_printable,) if console else ()),
        _Renderer(renderer),
    )
    wrapper = structlog.make_filtering_bound_logger(_LEVELS[level])
    _ours.configure(processors, wrapper, out, theirs or out)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *(() if keep is None else (_keeper(keep),)),
            *processors,
        ],
        wrapper_class=wrapper,
        logger_factory=structlog.WriteLoggerFactory(_lossy(theirs or out)),
        cache_logger_on_first_use=False,
    )


def unconfigure() -> None:
    """Leave structlog as if `configure` had never been called."""
    _ours.processors = []
    structlog.reset_defaults()


class Stream(Protocol):
    """What events need from a stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class _OwnOutput:
    """How our own events and those of `ctx.log` are written, as set by `configure`. What a handler configures for its
    own loggers affects neither.
    """

    def __init__(self) -> None:
        self.processors: list[structlog.typing.Processor] = []
        self._wrapper: Any = None
        self._logger = self._theirs = structlog.WriteLogger(_lossy(sys.stderr))

    def configure(self, processors: Sequence[Any], wrapper: Any, out: Stream, theirs: Stream) -> None:
        self.processors = list(processors)
        self._wrapper = wrapper
        self._logger, self._theirs = (structlog.WriteLogger(_lossy(stream)) for stream in (out, theirs))

    def logger(self, fields: Mapping[str, Any]) -> Any:
        return self._wrapped(self._logger, self.processors, _never_raising(self._wrapper), fields)

    def logger_of_job(self, first: Sequence[Any], fields: Mapping[str, Any]) -> Any:
        return self._wrapped(self._theirs, [*first, *self.processors], self._wrapper, fields)

    def _wrapped(self, logger: Any, processors: list[Any], wrapper: Any, fields: Mapping[str, Any]) -> Any:
        return structlog.wrap_logger(
            logger,
            processors=processors,
            wrapper_class=wrapper,
            context_class=dict,
            cache_logger_on_first_use=False,
            **fields,
        )


class _Events:
    """Our own events with these fields. They use the latest `configure`, even if it was called later."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        logger = _ours.logger(self._fields) if _ours.processors else structlog.get_logger(**self._fields)
        return getattr(logger, name)


@functools.cache
def _never_raising(wrapper: type[Any]) -> type[Any]:
    """Our own code continues even if logging fails: a handler may have replaced what logging needs."""

    class Sure(wrapper):  # type: ignore[misc]
        def _proxy_to_logger(self, method_name: str, event: str | None = None, *args: Any, **fields: Any) -> Any:
            with contextlib.suppress(Exception):
                return super()._proxy_to_logger(method_name, event, *args, **fields)

    return Sure


def _keeper(keep: Callable[[str], None]) -> structlog.typing.Processor:
    def kept(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _OURS.isdisjoint(event):
            keep(_line(level, event, {}))
        return event

    return kept


def _printable(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event for a terminal: no field, whoever wrote it, can start a line or control the terminal."""
    shown: dict[str, Any] = {}
    for name, value in event.items():
        if name in ("exception", "stack"):
            shown[name] = clean_lines(value)
        else:
            plain = isinstance(value, str) or name in _PLAIN
            shown[clean(name)] = clean(_text_of(value, str)) if plain else _Shown(clean(_text_of(value)))
    return shown


class _Renderer:
    """A renderer that shows every event: values that it cannot show are shown by their `repr`, or by their type."""

    def __init__(self, render: Any) -> None:
        self._render = render

    def __call__(self, logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        try:
            return self._render(logger, level, dict(event))
        except Exception:  # of an object's own, or of one that contains itself
            return self._render(logger, level, {name: _text_of(value) for name, value in event.items()})


def _text_of(value: object, convert: Callable[[object], str] = repr) -> str:
    """Text is text; of others their `repr`, or their type if that raises."""
    try:
        return value if isinstance(value, str) else convert(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


class _Shown:
    """What is already as it is to be shown: the console's renderer asks for the `repr` of all but text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _LossyStream:
    """A stream for events. An event that cannot be written, because the disk is full or the reader is gone, is lost: it
    must not end the process that it describes.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(Exception):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._stream.flush()


def _lossy(stream: Stream) -> TextIO:
    return cast("TextIO", _LossyStream(stream))


_ours = _OwnOutput()


def events(*, keep: Callable[[str], None] | None = None, **fields: Any) -> Any:
    """A logger with these fields on every event. `keep` marks it as a job's logger, and also receives each event as a
    line without the fields.

    In a program that has not called `configure`, it writes as that program has configured structlog.
    """
    if keep is None:
        return _Events(fields)

    def kept(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        keep(_line(level, event, fields))
        return event

    first = [structlog.contextvars.merge_contextvars, kept]
    if _ours.processors:
        return _ours.logger_of_job(first, fields)
    return structlog.wrap_logger(None, processors=[*first, *structlog.get_config()["processors"]], **fields)


def _line(level: str, event: MutableMapping[str, Any], known: Mapping[str, Any]) -> str:
    """An event for people, with the time in UTC: `2026-11-21T18:08:54.123Z info tagging path=cat.jpg`."""
    fields = dict(structlog.processors.format_exc_info(None, level, dict(event)))
    message, stack = fields.pop("event", ""), fields.pop("exception", None)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    more = (f"{name}={_value(value)}" for name, value in fields.items() if name not in known)
    line = " ".join((f"{at}Z", level, _text_of(message, str), *more))
    return f"{line}\n{stack}" if stack else line


def _value(value: object) -> str:
    """Unchanged if it is a single word; quoted otherwise."""
    text = _text_of(value)
    return repr(text) if isinstance(value, str) and (not text or " " in text or not text.isprintable()) else text
