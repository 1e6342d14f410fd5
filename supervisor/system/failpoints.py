"""Places where a test makes this process die, stop or fail. Without the variable nothing happens.

SUPERVISOR_FAILPOINTS="worker:settle_done.committed=kill@3;maintainer:renew.before=fail:busy*2;once=/tmp/once"
means: kill each worker when it passes that place for the third time, make each maintainer's first two attempts
at that statement fail, and let each of these happen only once, in whichever process gets there first.
`Site.failpoints` in tests/ says what places and actions there are. Making every call fail in turn is how SQLite tests
itself.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

VARIABLE = "SUPERVISOR_FAILPOINTS"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
Error = Callable[[str], Exception | None]  # the error of that kind at a place; None: the place has none

_POINT = re.compile(
    r"((?P<role>supervisor|maintainer|admin|template|worker|program):)?(?P<place>[^:=]+)="
    r"((?P<signal>kill|stop)|fail:(?P<kind>\w+))"
    r"((@(?P<number>[1-9]\d*))?(\*(?P<times>[1-9]\d*))?|%(?P<chance>0?\.\d+|1))"
)

_role = "program"


class Point:
    """One fail-point: what happens where, in which role, and at which passes."""

    def __init__(self, text: str, once: Path | None, seed: str) -> None:
        found = _POINT.fullmatch(text)
        if found is None:
            raise ValueError(f"{VARIABLE}: {text!r} is not a fail-point; see Site.failpoints in tests/")
        self._text, self._once, self._seed = text, once, seed
        self._role, self._place, self._kind = found["role"], found["place"], found["kind"]
        self._signal = SIGNALS.get(found["signal"] or "")
        self._from = int(found["number"] or 1)
        self._until = self._from + int(found["times"] or 1)
        self._chance = float(found["chance"] or 0)
        self.begin()

    def begin(self) -> None:
        """A new process or role: its passes are counted from here."""
        self._passed = 0
        self._ours = False  # whether `once` has chosen this process
        self._random = random.Random(f"{self._seed} {self._text} {os.getpid()}")

    def pass_by(self, place: str, error: Error) -> None:
        if self._role not in (None, _role) or not fnmatch.fnmatchcase(place, self._place):
            return
        failure = error(self._kind) if self._kind else None
        if self._kind and failure is None:
            return  # a pattern that matches a place of a different kind
        self._passed += 1
        due = self._random.random() < self._chance if self._chance else self._from <= self._passed < self._until
        if not due or not self._may_run():
            return
        if failure is not None:
            raise failure
        assert self._signal is not None
        # To this thread: if sent to the process, it might arrive a moment later.
        signal.pthread_kill(threading.get_ident(), self._signal)

    def _may_run(self) -> bool:
        """If only one process may do this, whether no other has; the file records which did. What happens by
        chance happens in all, and adds a line each time.
        """
        if self._once is None or self._ours:
            return True
        try:
            with (self._once / self._text).open("a" if self._chance else "x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            return False
        self._ours = not self._chance
        return True


def parse(text: str) -> tuple[Point, ...]:
    """The fail-points that the variable's value defines. Raises ValueError with one sentence."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    options = dict(part.split("=", 1) for part in parts if part.startswith(("once=", "seed=")))
    once = Path(options["once"]) if "once" in options else None
    return tuple(
        Point(part, once, options.get("seed", "")) for part in parts if not part.startswith(("once=", "seed="))
    )


def become(role: str) -> None:
    """Set the role of this process; its passes are counted from now on."""
    global _role
    _role = role
    for point in _armed():
        point.begin()


def _os_error(kind: str) -> OSError | None:
    code = getattr(errno, kind, None)
    return OSError(code, os.strerror(code)) if isinstance(code, int) else None


def reach(place: str, error: Error = _os_error) -> None:
    """Does nothing, unless a test has asked for it. Raises what `error` makes of a kind."""
    for point in _armed():
        point.pass_by(place, error)


def reach_sending(data: bytes) -> None:
    """Like `reach`, before a message is sent over a channel."""
    if _armed():
        reach(f"channel.send.{_kind_of(data)}")


def reach_receiving(end: socket.socket) -> None:
    """Like `reach`, when a message has arrived and before it is read from the channel."""
    if _armed():
        import socket

        try:
            data = end.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise  # one that arrives now is read next time, or it would not be noticed here
        except OSError:
            return  # the caller will find out
        reach(f"channel.receive.{_kind_of(data[1:])}")  # after the mark of the datagram


def _kind_of(data: bytes) -> str:
    """The first key of a message."""
    found = re.match(rb'\{"(\w+)"', data)
    return found[1].decode() if found else ""


@cache
def _armed() -> tuple[Point, ...]:
    return parse(os.environ.get(VARIABLE, ""))
