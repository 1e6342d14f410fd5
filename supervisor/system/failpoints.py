"""Places where a test makes this process die, stop or fail. Without the variable nothing happens.

SUPERVISOR_FAILPOINTS="worker:settle_done.committed=kill@3;maintainer:renew.before=fail:busy*2;once=/tmp/once"
means: kill each worker when it passes that place for the third time, make each maintainer's first two attempts
at that statement fail, and let each of these happen only once, in whichever process gets there first.
CONTRIBUTING.md lists the places and the actions. Making every call fail in turn is how SQLite tests
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
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

VARIABLE = "SUPERVISOR_FAILPOINTS"
ROLES = ("supervisor", "maintainer", "admin", "template", "worker", "program")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_CHILDREN = ("maintainer", "admin", "template", "worker", "program")
# The first keys of the messages between our processes; the first ones are the maintainer's.
MESSAGES = (
    *("recovered", "trouble", "depths", "controls", "cancels", "unhandled", "duties", "burst", "ack"),
    *("death", "leave", "fork", "end"),  # of the supervisor
    *("ready", "broken", "forked", "unforked", "exited", "swept"),  # of the template; `ready` of the admin process, too
    "problem",  # of the admin process
)
# Those of this package. A store adds its statements.
PLACES = (
    *(f"fork_{child}{when}" for child in _CHILDREN for when in (".before", "", ".child")),
    *(f"channel.{way}.{kind}" for way in ("send", "receive") for kind in MESSAGES),
    "set_up.before",
    "set_up",
    "death.received",
    "death.settled",
    *(f"restore.{step}" for step in ("copied", "gathered", "kept", "replaced")),
    *(f"move.{step}" for step in ("begun", "closed", "copied", "opened", "finished")),
)

Error = Callable[[str], Exception | None]  # the error of that kind at a place; None: the place has none

_ACTION = re.compile(r"(?P<signal>kill|stop)|fail:(?P<kind>\w+)")
_WHEN = re.compile(r"(@(?P<number>[1-9]\d*))?(\*(?P<times>[1-9]\d*))?|%(?P<chance>0?\.\d+|1)")
_KINDS = "fail:KIND, where KIND is one of the store's kinds (fail:busy) or the name of an error number (fail:EAGAIN)"

_role = "program"


class Point:
    """One fail-point: what happens where, in which role, and at which passes."""

    def __init__(self, text: str) -> None:
        where, equals, what = text.partition("=")
        self.role, colon, self.place = where.rpartition(":")
        if not equals or not self.place:
            raise ValueError(f"{text!r} is not a fail-point; write ROLE:PLACE=ACTION")
        if colon and self.role not in ROLES:
            raise ValueError(f"{self.role!r} is not a role; the roles are {', '.join(ROLES)}")
        action = _ACTION.match(what)
        when = action and _WHEN.fullmatch(what, action.end())
        if action is None or when is None:
            raise ValueError(
                f"{what!r} is not an action; write kill, stop or {_KINDS}; "
                "then @3 for the third time, *2 for twice in a row, or %0.01 for one time in a hundred"
            )
        self.text = text
        self.signal = SIGNALS.get(action["signal"] or "")
        self.kind = action["kind"] or ""
        self.number = int(when["number"] or 1)
        self.times = int(when["times"] or 1)
        self.chance = float(when["chance"] or 0)
        self.passed = 0
        self.once: Path | None = None
        self.seed = ""
        self._ours = False  # whether it applies to this process
        self._random = random.Random()

    def begin(self) -> None:
        """A new process or role: its passes are counted from here."""
        self.passed = 0
        self._ours = False
        self._random.seed(f"{self.seed} {self.text} {os.getpid()}")

    def is_at(self, place: str) -> bool:
        return self.role in ("", _role) and (
            self.place == place or ("*" in self.place and fnmatch.fnmatchcase(place, self.place))
        )

    def pass_by(self, error: Error) -> None:
        failure = error(self.kind) if self.kind else None
        if self.kind and failure is None:
            return  # a pattern that matches a place of a different kind
        self.passed += 1
        if not self._is_due() or not self._may_run():
            return
        if failure is not None:
            raise failure
        assert self.signal is not None
        # To this thread: if sent to the process, it might arrive a moment later.
        signal.pthread_kill(threading.get_ident(), self.signal)

    def _is_due(self) -> bool:
        if self.chance:
            return self._random.random() < self.chance
        return self.number <= self.passed < self.number + self.times

    def _may_run(self) -> bool:
        """If only one process may do this, whether no other has; the file records which did. What happens by
        chance happens in all, and adds a line each time.
        """
        if self.once is None or self._ours:
            return True
        fresh = os.O_APPEND if self.chance else os.O_EXCL
        try:
            descriptor = os.open(self.once / self.text, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | fresh, 0o600)
        except FileExistsError:
            return False
        os.write(descriptor, f"{os.getpid()}\n".encode())
        os.close(descriptor)
        self._ours = not self.chance
        return True


def parse(text: str) -> tuple[Point, ...]:
    """The fail-points that the variable's value defines. Raises ValueError with one sentence."""
    points, once, seed = [], None, ""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if part.startswith("once="):
            once = Path(part.removeprefix("once="))
            if not once.is_dir():
                raise ValueError(f"once: there is no folder {str(once)!r}")
        elif part.startswith("seed="):
            seed = part.removeprefix("seed=")
        else:
            points.append(Point(part))
    for point in points:
        point.once, point.seed = once, seed
        point.begin()
    return tuple(points)


def verify(places: Iterable[str], kinds: Iterable[str] = ()) -> None:
    """Raises ValueError, with one sentence, unless every fail-point is among these places or ours, and can
    fail there in the requested way. `kinds` are the kinds of failure of these places.
    """
    theirs, kinds = tuple(places), tuple(kinds)
    try:
        for point in _armed():
            there = {place for place in (*PLACES, *theirs) if fnmatch.fnmatchcase(place, point.place)}
            if not there:
                import difflib  # imported here: only needed for this message

                near = difflib.get_close_matches(point.place, [*PLACES, *theirs], 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"there is no place {point.place!r}{hint}")
            fits = (point.kind in kinds and there & set(theirs)) or (_os_error(point.kind) and there & set(PLACES))
            if point.kind and not fits:
                raise ValueError(f"{point.place!r} cannot fail with {point.kind!r}; write {_KINDS}")
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


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
        if point.is_at(place):
            point.pass_by(error)


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
