"""Handle jobs in a separate program: the Python side of job-supervisor's `command = [...]`.

One file, only the standard library, Python 3.8 or newer. A program that a pool starts finds it on its path, whatever
interpreter or virtual environment runs it; you can also copy it next to the program.

    from job_handler import serve
    def handle(payload, ctx):
        return {"tags": ["cat"]}

    serve(handle)

`python -m job_handler handlers.nsfw:NsfwClassifier` serves a handler that was written for a worker: a function, or a
class with `handle`, `handle_batch` for batches, or both, and optionally `setup` and `teardown`, all `async` or not.

Raise Retry("why", after="30s") for another attempt and Fail("why") for none; any other exception follows the pool's
policy. A job that exceeds its time limit, or is cancelled and does not stop, gets JobInterrupted, which `except
Exception` does not catch. TERM and INT are ignored until the worker has announced the end.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import json
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from functools import partialmethod
from operator import attrgetter
from typing import Any, Callable

__all__ = ["BatchContext", "Context", "Fail", "JobInterrupted", "Retry", "serve"]

PROTOCOL = 1
REPLY_FD = "SUPERVISOR_REPLY_FD"
MAX_LINE = 1 << 20  # bytes; the worker's limit
MAX_CHUNK = 16 * 1024  # bytes of JSON
MAX_TRACEBACK = 64 * 1024  # characters
MAX_WORDS = 2000  # characters of a message or a log line
INTERRUPT = signal.SIGUSR2
LATE = 1.0  # seconds after bye in which a TERM may still be meant for the process group; the worker waits for five

_ROOM = 64  # bytes reserved for the id, which is added to a line last
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)(ms|s|m|h|d)\s*")

for _stream in (sys.stdout, sys.stderr):  # printing is never an error, and output is written before the program dies
    if hasattr(_stream, "reconfigure"):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Retry(Exception):
    """Run this job again, `after` a duration ("30s") or seconds; without it the pool's policy decides."""

    def __init__(self, reason: str = "the handler asked for a retry", *, after: str | float | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else _seconds(after)


class Fail(Exception):
    """This job can never succeed: no further attempt."""


class JobInterrupted(BaseException):
    """Raised inside a handler whose job has exceeded its time limit, or was cancelled and has not stopped."""


class Log:
    """Events with fields for the worker's log; job, type and attempt are added there."""

    def __init__(self, send: Callable[..., None], fields: dict[str, Any]) -> None:
        self._send = send
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        return Log(self._send, {**self._fields, **fields})

    def _log(self, level: str, event: str, /, **fields: Any) -> None:
        plain = {name: _plain(value) for name, value in {**self._fields, **fields}.items()}
        try:
            self._send(type="log", level=level, text=str(event)[:MAX_WORDS], fields=plain)
        except ValueError:  # too long
            self._send(type="log", level=level, text=str(event)[:MAX_WORDS])

    debug = partialmethod(_log, "debug")
    info = partialmethod(_log, "info")
    warning = partialmethod(_log, "warning")
    error = partialmethod(_log, "error")

    def exception(self, event: str, **fields: Any) -> None:
        self.error(event, exception=traceback.format_exc(), **fields)


class Context:
    """What a handler receives besides its payload; in `setup` and `teardown` there is no job, and `job_id` is 0.

    `timeout` is seconds, `device` one of the pool's `gpus` or None. `token` is 0: the worker holds the claim.
    `cancelled` tells whether cancellation of this job was requested: a handler that checks it can clean up and return.
    """

    token = 0
    jobs: tuple[Context, ...] = ()

    def __init__(self, link: _Link, hello: dict[str, Any], job: dict[str, Any]) -> None:
        self._link = link
        self._id: int = job.get("id", 0)
        self._running = False
        self._must_stop = False
        self._children: list[dict[str, Any]] = []
        self.cancelled = False
        self.job_id: int = job.get("job_id", 0)
        self.idempotency_key: str = job.get("idempotency_key") or ""
        self.type: str = job.get("job_type", "")
        self.attempt: int = job.get("attempt", 0)
        self.timeout: float = job.get("timeout", 0.0)
        self.options: dict[str, Any] = hello.get("options", {})
        self.capabilities: tuple[str, ...] = tuple(hello.get("capabilities", ()))
        self.device: str | None = hello.get("device")
        self.log = Log(link.send, {})

    def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the job is: 0 to 1."""
        self._tell(type="progress", fraction=min(max(float(fraction), 0.0), 1.0), text=str(text)[:MAX_WORDS])

    def extend(self, duration: str | float) -> None:
        """Restart this run's time limit from now with this duration: "5m" or seconds."""
        self._tell(type="extend", seconds=_seconds(duration))

    def emit(self, chunk: Any) -> None:
        """Send a piece of the answer to whoever follows the job now: a text, or any JSON of at most 16 KiB."""
        size = len(json.dumps(chunk, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
        if size > MAX_CHUNK:
            raise ValueError(f"the chunk has {size} bytes of JSON; the limit is {MAX_CHUNK} (16 KiB)")
        self._tell(type="emit", chunk=chunk)

    def enqueue(self, type: str, payload: Any = None, **arguments: Any) -> None:
        """Enqueue a job that exists if and only if this job's completion is recorded.

        `arguments` are the options of `Queue.enqueue`. They are checked when the job is done; an error in them then
        fails it.
        """
        for name, value in arguments.items():
            if isinstance(value, datetime.datetime):
                if value.tzinfo is None:
                    raise ValueError(f"{name} has no time zone")
                arguments[name] = value.timestamp()
        if "requires" in arguments and not isinstance(arguments["requires"], str):
            arguments["requires"] = list(arguments["requires"])
        self._children.append({"type": type, "payload": {} if payload is None else payload, **arguments})

    def _tell(self, **message: Any) -> None:
        """Unless no job is running: messages from threads that it left behind are dropped."""
        with self._link.lock:
            if self._running:
                self._link.send(id=self._id, **message)


class BatchContext(Context):
    """For `handle_batch`: `jobs` has a context for each job, in the order of the payloads."""

    def __init__(self, link: _Link, hello: dict[str, Any], batch: dict[str, Any]) -> None:
        super().__init__(link, hello, {"id": batch["id"], "timeout": batch["timeout"]})
        self.jobs = tuple(Context(link, hello, {"timeout": self.timeout, **job}) for job in batch["jobs"])
        self.type = self.jobs[0].type if len({job.type for job in self.jobs}) == 1 else ""

    def emit(self, chunk: Any) -> None:
        raise TypeError("in a batch, emit through one of ctx.jobs: a chunk belongs to that job")

    def enqueue(self, *args: Any, **arguments: Any) -> None:
        raise TypeError("in a batch, enqueue through one of ctx.jobs: the new job is committed with that job")


def serve(handler: Any, *, capabilities: Any = None) -> None:
    """Send hello, run jobs until the worker sends bye, and return.

    `handler` is a function (payload, ctx), or a class or an object with `handle` or `handle_batch`, and optionally
    `setup` and `teardown`. `capabilities`, if given, is what it can do; a pool that declares more is rejected.
    """
    _Server(handler, capabilities).run()


def _encoded(message: dict[str, Any]) -> bytes:
    data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(data) > MAX_LINE - _ROOM:
        raise ValueError(f"its line has {len(data)} bytes; the limit is {MAX_LINE} (1 MiB)")
    return data + b"\n"


class _Link:
    """The two pipes to the worker. Every line is written as a whole, by any thread."""

    def __init__(self) -> None:
        number = os.environ.get(REPLY_FD)
        if number is None:
            raise SystemExit(f"{REPLY_FD} is not set: this program must be started by a pool, with command = [...]")
        self._replies = int(number)
        os.set_inheritable(self._replies, False)
        # Whatever the handler reads or starts must not consume our requests.
        self.requests = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.lock = threading.RLock()

    def send(self, **message: Any) -> None:
        data = _encoded(message)
        with self.lock:
            while data:
                data = data[os.write(self._replies, data) :]


class _Server:
    def __init__(self, handler: Any, capabilities: Any) -> None:
        self._link = _Link()
        self._jobs: queue.SimpleQueue[tuple[Context, Any] | None] = queue.SimpleQueue()
        self._latest: Context | None = None  # of the job that was received last
        self._interruptible = False
        self._leave_by = float("inf")  # monotonic seconds from which TERM comes from the worker, after its bye
        self._loop: Any = None
        self._listen()
        self._hello: dict[str, Any] = json.loads(self._link.requests.readline() or "{}")
        if self._hello.get("protocol") != PROTOCOL:
            raise SystemExit(f"the worker does not speak protocol {PROTOCOL} of this job_handler.py")
        self._target: Any = handler() if isinstance(handler, type) else handler
        self._idle = Context(self._link, self._hello, {})
        self._finish(getattr(self._target, "setup", lambda ctx: None)(self._idle))
        self._together: Any = getattr(self._target, "handle_batch", None)
        self._handle: Any = getattr(self._target, "handle", None if self._together else self._target)
        said: dict[str, Any] = {} if self._together is None else {"batches": True}
        if capabilities is not None:
            said["capabilities"] = list(capabilities)
        self._link.send(type="hello", protocol=PROTOCOL, **said)

    def run(self) -> None:
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        for job in iter(self._jobs.get, None):
            self._one(*job)
        self._finish(getattr(self._target, "teardown", lambda ctx: None)(self._idle))

    def _one(self, ctx: Context, payload: Any) -> None:
        for each in (ctx, *ctx.jobs):
            each._running = True
        try:
            replies = self._outcomes(ctx, payload)
        except BaseException as error:
            replies = [(ctx, _error_reply(error))]
        with self._link.lock:
            for each in (ctx, *ctx.jobs):
                each._running = False
            for each, reply in replies:
                self._link.send(id=each._id, **reply)

    def _outcomes(self, ctx: Context, payload: Any) -> list[tuple[Context, dict[str, Any]]]:
        """The reply to the job, or to each job of a batch."""
        try:
            self._interruptible = True
            if ctx._must_stop:
                raise JobInterrupted
            value = self._finish((self._together if ctx.jobs else self._handle)(payload, ctx))
        finally:
            self._interruptible = False
        if not ctx.jobs:
            return [(ctx, _result_reply(ctx, value))]
        if not isinstance(value, (list, tuple)) or len(value) != len(ctx.jobs):
            raise ValueError("handle_batch must return a list with a result or an exception for each job")
        return [
            (job, _error_reply(each) if isinstance(each, BaseException) else _result_reply(job, each))
            for job, each in zip(ctx.jobs, value)
        ]

    def _finish(self, value: Any) -> Any:
        """Await the value if necessary, on one event loop that lasts."""
        if not hasattr(value, "__await__"):
            return value
        import asyncio  # imported here: it takes longer to import than everything else

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = asyncio.ensure_future(value, loop=self._loop)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            # An interrupted job must not continue in the loop while the next one runs.
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def _listen(self) -> None:
        signal.signal(INTERRUPT, self._interrupt)
        signal.signal(signal.SIGINT, self._terminate)
        signal.signal(signal.SIGTERM, self._terminate)
        # Native code prevents Python's handlers from running; the stacks are written nevertheless.
        faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)

    def _interrupt(self, number: int, frame: Any) -> None:
        if self._interruptible and self._must_stop():
            self._interruptible = False
            raise JobInterrupted

    def _terminate(self, number: int, frame: Any) -> None:
        """From a terminal or a whole cgroup it is meant for the supervisor; the worker's comes after a last request."""
        if self._must_stop() or time.monotonic() > self._leave_by:
            os._exit(1)

    def _must_stop(self) -> bool:
        return self._latest is not None and self._latest._running and self._latest._must_stop

    def _read(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {INTERRUPT, signal.SIGTERM, signal.SIGINT})
        try:
            for line in self._link.requests:
                request = json.loads(line)
                kind, number, latest = request.get("type"), request.get("id"), self._latest
                if kind == "job" and "payload" in request and self._handle is not None:
                    self._latest = Context(self._link, self._hello, request)
                    self._jobs.put((self._latest, request["payload"]))
                elif kind == "batch" or (kind == "job" and "payload" in request):
                    jobs = request.get("jobs", [request])  # or a single one, for a class with only handle_batch
                    self._latest = BatchContext(self._link, self._hello, {**request, "jobs": jobs})
                    self._jobs.put((self._latest, [job["payload"] for job in jobs]))
                elif kind == "cancel" and isinstance(number, int) and latest is not None:
                    for each in (latest, *latest.jobs):
                        each.cancelled = each.cancelled or each._id == number
                    if request.get("now") and number >= latest._id and not latest._must_stop:
                        latest._must_stop = True
                        if latest._running:
                            faulthandler.dump_traceback(all_threads=True)
                        os.kill(os.getpid(), INTERRUPT)  # for the main thread: this one blocks it
                elif kind == "bye":
                    self._leave_by = time.monotonic() + LATE
                    self._jobs.put(None)
                    return
        except Exception:  # no worker sends this
            traceback.print_exc()
        os._exit(1)  # the worker is gone without a bye, or is not a worker


def _plain(value: Any) -> Any:
    """A value that JSON can represent: logging never fails."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:MAX_WORDS]
    return value


def _result_reply(ctx: Context, value: Any) -> dict[str, Any]:
    """What the handler has returned, as the final message about a job."""
    reply = {"type": "result", "value": value, **({"enqueue": ctx._children} if ctx._children else {})}
    try:
        _encoded(reply)
    except (TypeError, ValueError, RecursionError) as error:
        return {"type": "error", "kind": "result", "message": f"result: {error}"}
    return reply


def _error_reply(error: BaseException) -> dict[str, Any]:
    """An exception as the final message about a job."""
    reply: dict[str, Any] = {"type": "error", "message": _cut(str(error), MAX_WORDS)}
    if _is(error, Fail):
        return {**reply, "permanent": True}
    if _is(error, Retry):
        reply.update(retry=True, after=getattr(error, "after", None))
    elif isinstance(error, SystemExit):
        reply.update(message=f"the handler called sys.exit({error.code!r})", kind="exit")
    else:
        text = "".join(traceback.format_exception_only(type(error), error)).strip() or type(error).__name__
        reply["message"] = _cut(text, MAX_WORDS)
    if isinstance(error, MemoryError):
        reply["kind"] = "memory"
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {**reply, "traceback": _cut(stack, MAX_TRACEBACK)}


def _cut(text: str, limit: int) -> str:
    """The beginning, where an exception's class stands, and the end, where a traceback states the cause."""
    return text if len(text) <= limit else f"{text[: limit // 4]} … {text[-(limit * 3 // 4) + 3 :]}"


def _is(error: BaseException, kind: type) -> bool:
    """Our own exception, or the one of that name that handlers import from job-supervisor itself."""
    return isinstance(error, kind) or any(
        base.__name__ == kind.__name__ and base.__module__.partition(".")[0] == "supervisor"
        for base in type(error).__mro__
    )


def _seconds(value: str | float) -> float:
    if isinstance(value, str):
        written = _DURATION.fullmatch(value)
        if written is None:
            raise ValueError(f"{value!r} is not a duration; write it like 250ms, 10s, 5m, 2h or 7d")
        return float(written.group(1)) * _UNITS[written.group(2)]
    if isinstance(value, bool) or not 0 <= float(value) < float("inf"):
        raise ValueError(f"{value!r} is not a duration; it must be finite and not negative")
    return float(value)


def main() -> None:
    if len(sys.argv) != 2 or ":" not in sys.argv[1]:
        raise SystemExit("usage: python -m job_handler MODULE:ATTRIBUTE")
    module, _, attribute = sys.argv[1].partition(":")
    sys.path.insert(0, "")  # the configuration's folder, as for a worker
    serve(attrgetter(attribute)(importlib.import_module(module)))


if __name__ == "__main__":
    # The module that handlers import, not this copy of it under another name.
    importlib.import_module("job_handler").main()
