"""The main loop: shows the screen and handles keys and signals until the user quits."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from contextlib import suppress

from rich.console import Console
from rich.live import Live

from supervisor.cli.output import silence
from supervisor.cli.top.poller import Poller, Seen
from supervisor.cli.top.screen import screen
from supervisor.cli.top.view import View
from supervisor.store.base import Engine

EVERY = 1.0  # seconds; ages keep growing even if the database does not answer
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
        poller.job = None if view.subject is None else view.subject.job
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


_SEQUENCES = {
    "A": "up", "B": "down", "Z": "backtab", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pageup", "6~": "pagedown",
}  # fmt: skip
_NAMES = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"}
_KEY = re.compile(r"\x1b[\[O](?:[0-9;]*(?P<letter>[A-Za-z])|(?P<number>[0-9;]*~))|(?P<single>.)", re.DOTALL)


def decode(sent: bytes) -> list[str]:
    """The keys in one read, by name. Printable keys stand for themselves; unknown sequences are left out."""
    found = []
    for match in _KEY.finditer(sent.decode("utf-8", "ignore")):
        single = match["single"] or ""
        name = _NAMES.get(single, single if single.isprintable() else "")
        found.append(name or _SEQUENCES.get(match["letter"] or match["number"] or "", ""))
    return [name for name in found if name]
