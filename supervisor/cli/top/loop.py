"""The main loop: handles keys, signals and new data until the user quits."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from supervisor.cli.top import frame, keys
from supervisor.cli.top.panes import NAMES, Pane, panes
from supervisor.cli.top.poller import Poller, Seen
from supervisor.cli.top.terminal import Terminal
from supervisor.cli.top.view import Panes, View, press
from supervisor.store.base import Engine

EVERY = 1.0  # seconds; ages keep growing even if the database does not answer
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_HEARD = (*_ENDING, signal.SIGINT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_NOTHING: Panes = {name: Pane(name, (), ()) for name in NAMES}


def run(engine: Engine) -> int:
    """Returns the exit code. The terminal is always restored."""
    with _signals() as heard, Terminal() as terminal:
        poller = Poller(engine, heard[1])
        poller.start()
        try:
            return _Loop(terminal, poller, heard[0]).run()
        except OSError:
            return 128 + signal.SIGHUP  # the terminal is gone
        finally:
            poller.stop()


class _Loop:
    def __init__(self, terminal: Terminal, poller: Poller, heard: int) -> None:
        self._terminal = terminal
        self._poller = poller
        self._heard = heard
        self._view = View()
        self._seen = Seen()
        self._panes = _NOTHING
        self._ended = 0

    def run(self) -> int:
        while not self._ended and not self._view.quitting:
            self._look()
            self._draw()
            ready, _, _ = select.select([self._terminal.input, self._heard], [], [], EVERY)
            if self._heard in ready:
                self._hear(os.read(self._heard, 1024))
            if self._terminal.input in ready:
                self._type(self._terminal.read())
        return self._ended

    def _look(self) -> None:
        seen, before = self._poller.seen, self._seen
        if seen is before:
            return
        if seen.answers != before.answers:
            self._view = replace(self._view, message=seen.answer)
        self._seen = seen
        self._panes = _NOTHING if seen.overview is None else panes(seen.overview, seen.failures)

    def _draw(self) -> None:
        width, height = self._terminal.size()
        subject = self._view.subject(self._panes)
        self._poller.follow(None if subject is None else subject.job)
        self._terminal.show(frame.lines(self._seen, self._view, width, height, time.monotonic()))

    def _hear(self, numbers: bytes) -> None:
        """Each byte is the number of a signal, or 0 from the poller."""
        for number in numbers:
            if number in _ENDING:
                self._ended = 128 + number
            elif number == signal.SIGINT:
                self._view = View(quitting=True)
            elif number in (signal.SIGWINCH, signal.SIGCONT):
                self._terminal.resized()
            elif number == signal.SIGTSTP:
                self._rest()

    def _rest(self) -> None:
        """Ctrl-Z: restore the terminal for the shell until it continues this process."""
        self._terminal.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.take()

    def _type(self, sent: bytes) -> None:
        if not sent:
            self._ended = 128 + signal.SIGHUP
        for key in keys.decode(sent):
            pressed = press(self._view, key, self._panes, self._seen.overview)
            self._view = pressed.view
            if pressed.action is not None:
                self._poller.ask(pressed.action)


@contextmanager
def _signals() -> Iterator[tuple[int, int]]:
    """A pipe that receives the number of each signal; the signal handlers do nothing."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in _HEARD}
    try:
        yield reading, writing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
