"""Places where a test has this process die or stop. Without the variable nothing of this ever happens.

SUPERVISOR_FAILPOINTS="worker:settle_done.committed=kill@3;maintainer:held_by=stop;once=/tmp/once" means: kill
each worker when it passes that place for the third time, stop each maintainer at that one, and of each of
these let only the first happen, whichever process comes there. CONTRIBUTING.md lists the places.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

VARIABLE = "SUPERVISOR_FAILPOINTS"
ROLES = ("supervisor", "maintainer", "admin", "template", "worker", "program")
ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_CHILDREN = ("maintainer", "admin", "template", "worker", "program")
# Those of our own code. A store adds its statements.
PLACES = (
    *(f"fork_{child}{when}" for child in _CHILDREN for when in (".before", "", ".child")),
    "set_up.before",
    "set_up",
    "death.received",
    "death.settled",
    *(f"restore.{step}" for step in ("copied", "gathered", "kept", "replaced")),
)

_role = "program"


class Point:
    """One wish: what is to happen where, to whom, and at which time of passing."""

    def __init__(self, text: str) -> None:
        where, equals, what = text.partition("=")
        self.role, colon, self.place = where.rpartition(":")
        action, at, number = what.partition("@")
        if not equals or not self.place:
            raise ValueError(f"{text!r} is no fail-point; write ROLE:PLACE=ACTION")
        if colon and self.role not in ROLES:
            raise ValueError(f"{self.role!r} is no role; there are {', '.join(ROLES)}")
        if action not in ACTIONS or (at and not (number.isdecimal() and int(number))):
            raise ValueError(f"{what!r} is no action; write {' or '.join(ACTIONS)}, with @3 for the third time")
        self.text = text
        self.signal = ACTIONS[action]
        self.number = int(number or 1)
        self.passed = 0
        self.once: Path | None = None

    def pass_by(self) -> None:
        self.passed += 1
        if self.passed == self.number and self._is_first():
            # To this very thread: sent to the process, it might come a moment later.
            signal.pthread_kill(threading.get_ident(), self.signal)

    def _is_first(self) -> bool:
        """Whether no other process has done this, if only one may; the file says which did."""
        if self.once is None:
            return True
        try:
            descriptor = os.open(self.once / self.text, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        os.write(descriptor, str(os.getpid()).encode())
        os.close(descriptor)
        return True


def parse(text: str) -> tuple[Point, ...]:
    """The points that a value of the variable asks for. Raises ValueError with one sentence."""
    points, once = [], None
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if part.startswith("once="):
            once = Path(part.removeprefix("once="))
            if not once.is_dir():
                raise ValueError(f"once: there is no folder {str(once)!r}")
        else:
            points.append(Point(part))
    for point in points:
        point.once = once
    return tuple(points)


def verify(places: Iterable[str]) -> None:
    """Raises ValueError, with one sentence, unless every point asked for is among these places or ours."""
    known = {*PLACES, *places}
    try:
        for point in _armed():
            if point.place not in known:
                import difflib  # for this message only

                near = difflib.get_close_matches(point.place, known, 1)
                raise ValueError(f"there is no place {point.place!r}" + (f"; is it {near[0]!r}?" if near else ""))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def become(role: str) -> None:
    """Say what this process is; its own passing of places begins to count."""
    global _role
    _role = role
    for point in _armed():
        point.passed = 0


def reach(place: str) -> None:
    """Nothing happens here, unless a test has asked for it."""
    for point in _armed():
        if point.place == place and point.role in ("", _role):
            point.pass_by()


@cache
def _armed() -> tuple[Point, ...]:
    return parse(os.environ.get(VARIABLE, ""))
