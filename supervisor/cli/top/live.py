"""The terminal: shows the screen and handles keys and signals until the user quits.

A thread reads the database once a second and performs the requested actions: if the database is busy or gone, only the
thread waits; keys still work.
"""

from __future__ import annotations

import os
import queue
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import suppress
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from supervisor.cli.output import silence
from supervisor.cli.top.screen import screen
from supervisor.cli.top.view import Action, Seen, View
from supervisor.domain.errors import QueueError, StoreBusy, StoreError
from supervisor.ops import commands
from supervisor.ops.status import Costs, gather
from supervisor.store.base import Engine, Operations

EVERY = 1.0  # seconds between two reads; ages keep growing even if the database does not answer
RECENT = 50  # unsuccessful jobs of each kind that are looked through for the latest failures
_ENDING = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 0}  # with exit codes
_GONE = _ENDING[signal.SIGHUP]


def run(engine: Engine) -> int:
    """Returns the exit code. The terminal is always restored."""
    heard, wake = _signals()
    poller = Poller(engine, wake)
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        with Live(
            console=Console(), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            return _run(live, poller, heard)
    except OSError:  # the terminal is gone
        silence()
        return _GONE
    finally:
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        poller.stop()


def _run(live: Live, poller: Poller, heard: int) -> int:
    keyboard, view, seen = sys.stdin.fileno(), View(), Seen()
    while not view.quitting:
        if poller.seen is not seen:
            answers, seen = seen.answers, poller.seen
            view.see(seen.overview, seen.failures)
            view.message = view.message if seen.answers == answers else seen.answer
        columns, lines = os.get_terminal_size()  # the console would prefer $COLUMNS, which does not change
        live.console.size = (columns or 80, lines or 24)
        live.update(screen(seen, view, *live.console.size, time.monotonic()), refresh=True)
        ready, _, _ = select.select([keyboard, heard], [], [], EVERY)
        # Each byte is the number of a signal, or 0 from the poller.
        for number in os.read(heard, 1024) if heard in ready else b"":
            if number in _ENDING:
                return _ENDING[signal.Signals(number)]
        if keyboard in ready:
            sent = os.read(keyboard, 1024)
            if not sent:
                return _GONE
            for key in decode(sent):
                if (action := view.press(key)) is not None:
                    poller.ask(action)
    return 0


def _signals() -> tuple[int, int]:
    """A pipe that receives the number of each signal; the signal handlers do nothing."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (*_ENDING, signal.SIGWINCH):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would have no screen
    return reading, writing


_SEQUENCES = {"A": "up", "B": "down", "Z": "backtab", "5~": "pageup", "6~": "pagedown"}
_NAMES = {"\t": "tab", "\x1b": "escape"}
_KEY = re.compile(r"\x1b[\[O](?:[0-9;]*(?P<letter>[A-Za-z])|(?P<number>[0-9;]*~))|(?P<single>.)", re.DOTALL)


def decode(sent: bytes) -> list[str]:
    """The keys in one read, by name. Printable keys stand for themselves; unknown sequences are left out."""
    found = []
    for match in _KEY.finditer(sent.decode("utf-8", "ignore")):
        single = match["single"] or ""
        name = _NAMES.get(single, single if single.isprintable() else "")
        found.append(name or _SEQUENCES.get(match["letter"] or match["number"] or "", ""))
    return [name for name in found if name]


class Poller:
    """`seen` is replaced as a whole, and a byte is written to `wake` each time."""

    def __init__(self, engine: Engine, wake: int) -> None:
        self.seen = Seen()
        self._engine = engine
        self._wake = wake
        self._wanted: queue.SimpleQueue[Action | None] = queue.SimpleQueue()  # None: stop
        self._operations: Operations | None = None
        self._costs = Costs()
        self._thread = threading.Thread(target=self._work, daemon=True, name="poller")
        self._thread.start()

    def ask(self, action: Action) -> None:
        self._wanted.put(action)

    def stop(self) -> None:
        """Does not wait long: reading a busy database may take seconds, and writes nothing."""
        self._wanted.put(None)
        self._thread.join(0.2)

    def _work(self) -> None:
        while True:
            self._publish(self._look())
            with suppress(queue.Empty):
                action = self._wanted.get(timeout=EVERY)
                if action is None:
                    return self._forget()
                self._publish(self._perform(action))

    def _publish(self, seen: Seen) -> None:
        self.seen = seen
        os.write(self._wake, b"\0")

    def _look(self) -> Seen:
        try:
            operations = self._open()
            overview = gather(self._engine, operations, costs=self._costs)
            known = replace(self.seen, overview=overview, failures=_failures(operations))
            return replace(known, at=time.monotonic(), trouble="")
        except (StoreError, OSError) as error:
            return replace(self.seen, trouble=self._told(error))

    def _perform(self, action: Action) -> Seen:
        try:
            operations = self._open()
            answer = action.perform(operations, operations.statistics.now(), *action.given)
        except (QueueError, OSError) as error:
            answer = f"not done: {self._told(error)}"
        return replace(self.seen, answer=answer, answers=self.seen.answers + 1)

    def _told(self, error: Exception) -> str:
        """The error in one line, with the file's name instead of its path."""
        if isinstance(error, (StoreError, OSError)) and not isinstance(error, StoreBusy):
            self._forget()  # the file may have been replaced
        file = self._engine.database.file
        return str(error) if file is None else str(error).replace(str(file), file.name)

    def _open(self) -> Operations:
        if self._operations is None:
            self._operations, self._costs = self._engine.operations(), Costs()
        self._operations.check()  # an open file that was moved away can still be read
        return self._operations

    def _forget(self) -> None:
        operations, self._operations = self._operations, None
        if operations is not None:
            operations.close()


def _failures(operations: Operations) -> dict[str, str]:
    """The latest message of each type."""
    found = [
        job
        for status in commands.UNSUCCESSFUL
        for job in operations.jobs.latest(status=status, type=None, before=None, limit=RECENT)
    ]
    found.sort(key=lambda job: job.completed_at or 0.0)
    return {job.type: job.last_error for job in found if job.last_error}
