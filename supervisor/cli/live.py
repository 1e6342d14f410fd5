"""The terminal of `top`: shows the screen and handles keys and signals until the user quits.

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
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.live import Live

from supervisor.cli.output import silence
from supervisor.cli.screen import Action, View, screen
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
    # A pipe that receives the number of each signal; the signal handlers do nothing.
    heard, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (*_ENDING, signal.SIGWINCH):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would have no screen
    poller = Poller(engine, wake)
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        with Live(
            console=Console(), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            return _run(live, poller, keyboard, heard)
    except OSError:  # the terminal is gone
        silence()
        return _GONE
    finally:
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        poller.wanted.put(None)
        poller.thread.join(0.2)  # reading a busy database may take seconds, and writes nothing


def _run(live: Live, poller: Poller, keyboard: int, heard: int) -> int:
    view = View()
    while not view.quitting:
        with suppress(queue.Empty):
            while True:
                poller.news.get_nowait()(view)
        columns, lines = os.get_terminal_size()  # the console would prefer $COLUMNS, which does not change
        live.console.size = (columns or 80, lines or 24)
        live.update(screen(view, *live.console.size, time.monotonic()), refresh=True)
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
                    poller.wanted.put(action)
    return 0


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
    """A thread that performs the `wanted` actions (None: it ends). Each of its `news` changes the view; then a byte is
    written to `wake`.
    """

    def __init__(self, engine: Engine, wake: int) -> None:
        self.wanted: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[Callable[[View], None]] = queue.SimpleQueue()
        self._engine = engine
        self._wake = wake
        self._operations: Operations | None = None
        self._costs = Costs()
        self.thread = threading.Thread(target=self._work, daemon=True, name="poller")
        self.thread.start()

    def _work(self) -> None:
        while True:
            self._tell(self._look())
            with suppress(queue.Empty):
                action = self.wanted.get(timeout=EVERY)
                if action is None:
                    return self._forget()
                self._tell(self._perform(action))

    def _tell(self, news: Callable[[View], None]) -> None:
        self.news.put(news)
        os.write(self._wake, b"\0")

    def _look(self) -> Callable[[View], None]:
        try:
            operations = self._open()
            overview, failures = gather(self._engine, operations, costs=self._costs), _failures(operations)
            at = time.monotonic()
            return lambda view: view.see(overview, failures, at)
        except (StoreError, OSError) as error:
            trouble = self._sentence(error)
            return lambda view: setattr(view, "trouble", trouble)

    def _perform(self, action: Action) -> Callable[[View], None]:
        try:
            operations = self._open()
            answer = action.perform(operations, operations.statistics.now(), *action.given)
        except (QueueError, OSError) as error:
            answer = f"not done: {self._sentence(error)}"
        return lambda view: setattr(view, "message", answer)

    def _sentence(self, error: Exception) -> str:
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
    latest = operations.jobs.latest
    found = [job for s in commands.UNSUCCESSFUL for job in latest(status=s, type=None, before=None, limit=RECENT)]
    found.sort(key=lambda job: job.completed_at or 0.0)
    return {job.type: job.last_error for job in found if job.last_error}
