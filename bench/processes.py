"""Processes that a benchmark starts: none of them outlives it, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from supervisor.system import ending, kernel

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_interrupted = False
_TAIL = 200  # characters of a log that say why a program has ended
Program = subprocess.Popen[bytes]


class ProgramFailed(Exception):
    """A program ended otherwise than it should; the text says how."""


def adopt_orphans() -> None:
    """Whatever our programs leave behind becomes our child, so that `sweep` finds it; stops are one exception."""
    kernel.become_subreaper()
    interrupt_on_stops()


def interrupt_on_stops() -> None:
    """A stop raises KeyboardInterrupt."""
    for number in _STOPPING:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    ignore_stops()  # from here on things are only taken down, which is bounded
    raise KeyboardInterrupt


def ignore_stops() -> None:
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def running(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own; at the end it and all its descendants are killed."""
    process = _start(command, env, log)
    try:
        yield process
    finally:
        _kill(process)


def call(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, patience: float, folder: Path | None = None
) -> str:
    """Run a program to its end and return what it printed. Raises ProgramFailed."""
    output = log.with_suffix(".out")
    with output.open("wb") as out:
        process = _start(command, env, log, out=out.fileno(), folder=folder)
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"{_name(command)} has not ended within {patience:g} s{tail(log)}") from None
    finally:
        _kill(process)
    if status != 0:
        raise ProgramFailed(f"{_name(command)} ended with status {status}{tail(log)}")
    return output.read_text()


def sweep() -> int:
    """Kill and reap every descendant that is left. Returns how many."""
    return ending.kill_children() or 0


def tail(log: Path) -> str:
    """The last line of a log, as the end of a sentence."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1][:_TAIL]}" if said else ""


def _start(
    command: Sequence[str], env: Mapping[str, str], log: Path, out: int | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=folder or log.parent,
            stdin=subprocess.DEVNULL,
            stdout=errors if out is None else out,
            stderr=errors,
            start_new_session=True,
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),
        )
    if _interrupted:  # in the middle of the fork, where Python drops exceptions
        _kill(process)
        raise KeyboardInterrupt
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _name(command: Sequence[str]) -> str:
    return " ".join(Path(word).name for word in command[:3])
