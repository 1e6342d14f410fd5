"""Structured events on stderr, also those about failed runs: JSON for machines, one readable line for a terminal."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO, cast

from supervisor.domain.job import Status
from supervisor.domain.text import clean, clean_lines

if TYPE_CHECKING:
    from supervisor.domain.settlement import Settlement

__all__ = ["JobEvents", "configure", "events", "unconfigure"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_OURS = frozenset({"job", "jobs", "pool", "worker"})  # fields of events that `events` keeps, or that are our own


@functools.cache
def _structlog() -> Any:
    """Imported by whoever logs: it takes as long as everything that most commands import."""
    # It would import rich, which takes as long again; we use nothing from that.
    rich_missing = "rich" not in sys.modules
    if rich_missing:
        sys.modules["rich"] = None  # type: ignore[assignment]  # means: it cannot be imported
    try:
        import structlog
    finally:
        if rich_missing:
            del sys.modules["rich"]
    return structlog


class Stream(Protocol):
    """What events need from a stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class _Output(NamedTuple):
    """How our own events and those of `ctx.log` are written. What a handler configures for its own loggers affects
    neither.
    """

    processors: list[Any]
    wrapper: type[Any]
    ours: Any
    theirs: Any

    def logger(self, output: Any, first: list[Any], fields: Mapping[str, Any]) -> Any:
        return _structlog().wrap_logger(
            output,
            processors=[*first, *self.processors],
            wrapper_class=self.wrapper,
            context_class=dict,
            cache_logger_on_first_use=False,
            **fields,
        )


_output: _Output | None = None


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

    An event that cannot be written, because the disk is full or a handler has replaced what logging needs, is lost: it
    must not end what it describes.
    """
    global _output
    structlog = _structlog()
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    renderer: Any = structlog.processors.JSONRenderer()
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
        structlog.processors.format_exc_info,
        *((_printable,) if console else ()),
        functools.partial(_rendered, renderer),
    ]
    wrapper = _never_raising(structlog.make_filtering_bound_logger(_LEVELS[level]))
    ours, others = (structlog.WriteLogger(cast("TextIO", each)) for each in (out, theirs or out))
    _output = _Output(processors, wrapper, ours, others)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *([_keeper(keep)] if keep else []), *processors],
        wrapper_class=wrapper,
        logger_factory=lambda *_: others,
        cache_logger_on_first_use=False,
    )


def unconfigure() -> None:
    """Leave structlog as if `configure` had never been called."""
    global _output
    _output = None
    _structlog().reset_defaults()


class _Events:
    """Our own events with these fields. They use the latest `configure`, even if it was called later."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if _output is None:
            return getattr(_structlog().get_logger(**self._fields), name)
        return getattr(_output.logger(_output.ours, [], self._fields), name)


def events(*, keep: Callable[[str], None] | None = None, **fields: Any) -> Any:
    """A logger with these fields on every event. `keep` marks it as a job's logger, and also receives each event as a
    line without the fields.

    In a program that has not called `configure`, it writes as that program has configured structlog.
    """
    if keep is None:
        return _Events(fields)
    structlog = _structlog()
    first = [structlog.contextvars.merge_contextvars, _keeper(keep, fields)]
    if _output is not None:
        return _output.logger(_output.theirs, first, fields)
    return structlog.wrap_logger(None, processors=[*first, *structlog.get_config()["processors"]], **fields)


def _never_raising(wrapper: type[Any]) -> type[Any]:
    class Sure(wrapper):  # type: ignore[misc]
        def _proxy_to_logger(self, method_name: str, event: str | None = None, *args: Any, **fields: Any) -> Any:
            with contextlib.suppress(Exception):
                return super()._proxy_to_logger(method_name, event, *args, **fields)

    return Sure


def _keeper(keep: Callable[[str], None], known: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Of a logger with the fields `known`, or of any logger that is not ours."""

    def kept(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if known is not None or _OURS.isdisjoint(event):
            keep(_line(level, event, known or {}))
        return event

    return kept


def _printable(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event for a terminal: no field, whoever wrote it, can start a line or control the terminal."""
    shown: dict[str, Any] = {}
    for name, value in event.items():
        if name in ("exception", "stack"):
            shown[name] = clean_lines(value)
        else:
            text = _text_of(value)
            shown[clean(name)] = value if clean(text) == text else clean(text)
    return shown


def _rendered(render: Any, logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
    """Every event: values that the renderer cannot show are shown by their `repr`, or by their type."""
    try:
        return render(logger, level, dict(event))
    except Exception:  # of an object's own, or of one that contains itself
        return render(logger, level, {name: _text_of(value) for name, value in event.items()})


def _text_of(value: object) -> str:
    """Text is text; of others their `repr`, or their type if that raises."""
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _line(level: str, event: MutableMapping[str, Any], known: Mapping[str, Any]) -> str:
    """An event for people, with the time in UTC: `2026-11-21T18:08:54.123Z info tagging path=cat.jpg`."""
    fields = dict(_structlog().processors.format_exc_info(None, level, dict(event)))
    message, stack = fields.pop("event", ""), fields.pop("exception", None)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    more = (f"{name}={_value(value)}" for name, value in fields.items() if name not in known)
    line = " ".join((f"{at}Z", level, _text_of(message), *more))
    return f"{line}\n{stack}" if stack else line


def _value(value: object) -> str:
    """Unchanged if it is a single word; quoted otherwise."""
    text = _text_of(value)
    return repr(text) if isinstance(value, str) and (not text or " " in text or not text.isprintable()) else text


# Failed runs: `job_failed`, `job_given_up` and `job_quarantined`

MOST_FAILURES = 10  # of each event logged one by one per second; the rest are counted
_SECOND = 1.0
_LONGEST = 300  # characters of an error's message
_EVENTS = {Status.PENDING: "job_failed", Status.FAILED: "job_given_up", Status.QUARANTINED: "job_quarantined"}


class JobEvents:
    """Called with what was committed. `log` names the process."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._since = 0.0  # when the current second started
        self._logged: Counter[str] = Counter()
        self._unlogged = 0

    def settled(self, settlement: Settlement, **fields: object) -> None:
        """Log it if the run failed; a run that was cancelled or released did not. The `fields` are added."""
        claim, failure, event = settlement.claim, settlement.failure, _EVENTS.get(settlement.status)
        if claim is None or failure is None or event is None:
            return
        if monotonic() - self._since >= _SECOND:
            self.tell_rest(now=True)
            self._since = monotonic()
            self._logged.clear()
        if self._logged[event] >= MOST_FAILURES:
            self._unlogged += 1
            return
        self._logged[event] += 1
        again = settlement.status is Status.PENDING
        log = self._log.warning if again else self._log.error
        log(
            event,
            job=claim.job_id,
            type=claim.type,
            attempt=claim.attempt,
            kind=failure.kind,
            error=_first_line(failure.message),
            **({"retry_in": round(settlement.delay, 3)} if again else {}),  # seconds
            **fields,
        )

    def tell_rest(self, *, now: bool = False) -> None:
        """Log how many failures were not logged one by one: once a second, or `now`. To be called now and then."""
        if self._unlogged and (now or monotonic() - self._since >= _SECOND):
            self._log.warning("more_jobs_failed", count=self._unlogged, hint="supervisor jobs list --status failed")
            self._unlogged = 0


def _first_line(message: str) -> str:
    """The first line that is not empty, shortened."""
    first = next((line for line in message.splitlines() if line.strip()), "").strip()
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
