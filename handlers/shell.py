"""A program that a payload names, if the pool allows it. It is off unless the options say what may be started.

    [pools.convert]
    handler = "handlers.shell:Shell"
    options = { allow = ["/usr/bin/pdftotext"], timeout = 30.0 }

A program gets a list of arguments, not a command line: nothing in an argument has a meaning for a shell.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handlers.options import ShellOptions, checked_by, read
from supervisor import Fail, Retry

if TYPE_CHECKING:
    from supervisor import Context

_KEYS = frozenset({"argv", "command", "input", "timeout"})
_LOOK = 0.1  # seconds between two looks whether the job has been cancelled
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_AFTER_END = 0.2  # seconds that output is read for after the end of a program whose own children hold the pipe open
_SAID = 300  # characters of stderr in the message of a failure


@checked_by(ShellOptions)
class Shell:
    """`{"argv": ["pdftotext", "in.pdf", "-"]}` → `{"exit_code": 0, "stdout", "stderr", "truncated", "seconds"}`.

    `argv[0]` is the path of an allowed program, or its file name. `input` is its standard input, `timeout` seconds, at
    most those of the options. With the option `shell` the payload may have a `command` for /bin/sh instead of `argv`.
    """

    def __init__(self) -> None:
        self._options = ShellOptions.model_construct()

    def setup(self, ctx: Context) -> None:
        self._options = read(ShellOptions, ctx.options)

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """Raises Fail for a payload that is invalid or not allowed, a program that cannot be started, and an exit code
        in `final`; Retry for other exit codes, a signal and too much time.
        """
        options = self._options
        argv, timeout = _argv(payload, options), _timeout(payload, options)
        started = time.monotonic()
        with _input(payload) as standard_input, _started(argv, standard_input, options) as process:
            run = _Run(process, options.max_output)
            try:
                why = run.follow(started + timeout, ctx)
            finally:  # also when the worker itself is told to end
                code = _end(process)
        seconds = round(time.monotonic() - started, 3)
        result = {"exit_code": code, **run.output(), "seconds": seconds}
        if why == "cancelled":
            return {**result, "cancelled": True}
        if why:
            raise Retry(f"{_shown(argv)} was ended: {why.format(timeout)}")
        if code == 0:
            return result
        verdict = Fail if code in options.final else Retry
        raise verdict(_message(argv, code, result["stderr"]))


class _Run:
    """A running program, its output up to a limit, and its end."""

    def __init__(self, process: subprocess.Popen[bytes], most: int) -> None:
        self._process = process
        self._most = most
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = False

    def follow(self, deadline: float, ctx: Context) -> str:
        """Read until the program has ended: "" then, or why it should be ended now."""
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for name in self._kept:
                selector.register(getattr(self._process, name), selectors.EVENT_READ, name)
            end = os.pidfd_open(self._process.pid)
            stack.callback(os.close, end)
            selector.register(end, selectors.EVENT_READ)
            ended = False
            while (now := time.monotonic()) < deadline:
                if ctx.cancelled:
                    return "cancelled"
                for key, _ in selector.select(min(_LOOK, deadline - now)):
                    if key.data is not None:
                        self._read(selector, key)
                    else:  # it has ended; its own children may still have the pipes
                        ended = True
                        selector.unregister(end)
                        deadline = min(deadline, time.monotonic() + _AFTER_END)
                if not selector.get_map():
                    return ""
        return "" if ended else "it took longer than {:g} s"

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, 65536)
        if not data:
            selector.unregister(key.fileobj)
            return
        kept = self._kept[key.data]
        room = self._most - len(kept)
        kept += data[:room]
        self._truncated = self._truncated or len(data) > room

    def output(self) -> dict[str, Any]:
        """The start of what it wrote. The rest was read too, so that the program never waited for a full pipe."""
        texts = {name: kept.decode("utf-8", "replace") for name, kept in self._kept.items()}
        return {**texts, "truncated": self._truncated}


def _started(argv: list[str], standard_input: Any, options: ShellOptions) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in options.environment if name in os.environ}
    try:
        return subprocess.Popen(
            argv,
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=options.folder,
            env=environment,
            process_group=0,  # what it starts is ended with it
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL byte, or a lone surrogate
        reason = error.strerror if isinstance(error, OSError) else error
        raise Fail(f"{_shown(argv)} cannot be started: {reason}") from None


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the program and all of its group; its exit code, or the negative number of a signal.

    The group is killed before the program is reaped: until then its number cannot belong to another group.
    """
    if not _has_ended(process):
        os.killpg(process.pid, signal.SIGTERM)  # our own unreaped child
        give_up = time.monotonic() + _GRACE
        while not _has_ended(process) and time.monotonic() < give_up:
            time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)  # our own unreaped child
    return process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _argv(payload: Any, options: ShellOptions) -> list[str]:
    if not isinstance(payload, Mapping) or (unknown := sorted(payload.keys() - _KEYS)):
        what = f"unknown key {unknown[0]!r}" if isinstance(payload, Mapping) else "it is no object"
        raise Fail(f"the payload: {what}; it has argv, input and timeout")
    if ("argv" in payload) == ("command" in payload):
        raise Fail('the payload must have argv, a list like ["pdftotext", "in.pdf", "-"]')
    if "command" in payload:
        return _command(payload["command"], options)
    argv = payload["argv"]
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv) or not argv[0]:
        raise Fail("argv must be a list of strings, the program first")
    return [_program(argv[0], options), *argv[1:]]


def _command(command: Any, options: ShellOptions) -> list[str]:
    if not options.shell:
        raise Fail("a command line is refused: give argv, or set options = { shell = true } for this pool")
    if not isinstance(command, str) or not command.strip():
        raise Fail("command must be a string that is not empty")
    return ["/bin/sh", "-c", command]


def _program(name: str, options: ShellOptions) -> str:
    if options.allow == "any":
        return name
    for allowed in options.allow:
        if name in (allowed, Path(allowed).name):
            return allowed
    raise Fail(f"this pool does not start {name!r}: options.allow has {', '.join(options.allow)}")


def _timeout(payload: Mapping[str, Any], options: ShellOptions) -> float:
    seconds = payload.get("timeout", options.timeout)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= options.timeout:
        raise Fail(f"timeout must be seconds, more than 0 and at most the {options.timeout:g} of the pool's options")
    return float(seconds)


def _input(payload: Mapping[str, Any]) -> Any:
    """Standard input as a file: writing to a pipe could wait for a program that writes to us."""
    text = payload.get("input", "")
    if not isinstance(text, str):
        raise Fail("input must be a string")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise Fail("input has a lone surrogate, which is no character") from None
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(data)
    file.seek(0)
    return file


def _message(argv: list[str], code: int, said: str) -> str:
    how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    last = said.strip()[-_SAID:]
    return f"{_shown(argv)} {how}" + (f": {last}" if last else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shown(argv: list[str]) -> str:
    """The program without its arguments, which may hold secrets."""
    return "the command line" if argv[:2] == ["/bin/sh", "-c"] else argv[0]
