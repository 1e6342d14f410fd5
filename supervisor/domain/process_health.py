"""Whether a process is healthy, and when one that died is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import NamedTuple

from supervisor.domain.polling import backoff
from supervisor.domain.text import human, shortened

CANCEL_GRACE = 5.0  # seconds for a handler to see ctx.cancelled, before it is interrupted; a pool may change both
KILL_GRACE = 5.0  # seconds for the clean-up of an interrupted handler


class Verdict(Enum):
    WELL = "well"  # the heartbeat is recent
    BUSY = "busy"  # late, but using CPU: native code; tolerated, locks renewed
    STOPPED = "stopped"  # in state T: stopped by a signal
    STUCK = "stuck"  # late, and no CPU used since then


class Signs(NamedTuple):
    """What was read about a process at one moment. Times are monotonic seconds; `cpu` is seconds used.

    What could not be read is None: a process that cannot be inspected may be working.
    """

    at: float
    beat: float
    cpu: float | None
    state: str | None  # the letter of /proc/PID/stat


# With no more CPU than this a late process is not working: waking and sleeping uses some, too.
_SOME_CPU = 0.05
_FAR_OVER = 1.1  # times max_memory


def first_late(kept: Signs | None, now: Signs) -> Signs:
    """The signs to compare with later: those `kept` from when the beat was first late, if the CPU time was known."""
    return now if kept is None or kept.cpu is None else kept


def judge(now: Signs, earlier: Signs | None, heartbeat_timeout: float) -> Verdict:
    """Judge a process by its signs now and those of when its beat was first found late.

    A late heartbeat alone is not enough: native code that holds the interpreter's lock stops the heartbeat and still
    works. What counts is whether CPU time advances. (That a job makes progress is up to its time limit.)

    `earlier` is None while the beat is on time. A process is judged stuck only after `heartbeat_timeout` seconds
    without a beat, and half as long again without CPU; if this cannot be determined, it counts as busy.
    """
    if now.at - now.beat < heartbeat_timeout:
        return Verdict.WELL
    if now.state in ("T", "t"):
        return Verdict.STOPPED
    if now.cpu is None or earlier is None or earlier.cpu is None:
        return Verdict.BUSY  # not known yet
    if now.cpu - earlier.cpu > _SOME_CPU or now.at - earlier.at < heartbeat_timeout / 2:
        return Verdict.BUSY
    return Verdict.STUCK


_FREE = 3  # early deaths in a row that cost no delay
_FIRST_DELAY = 0.1  # seconds, doubled with each further early death
_LONGEST_DELAY = 30.0
_BROKEN_FIRST = 1.0
_BROKEN_LONGEST = 60.0
_NEWS = 60.0  # seconds for which a crash loop is reported after its last death
_MAX_REASON = 500  # characters of an error


class Restarts(NamedTuple):
    """A pool's record of deaths. Times are monotonic seconds; `why` is the error of the last failed set-up.

    A death counts only if the worker was requested after the last death that counted: however many die at
    once, replacing them has not failed yet.
    """

    early_deaths: int = 0
    failed_setups: int = 0
    counted_at: float = -inf
    delay: float = 0.0
    why: str = ""

    @property
    def not_before(self) -> float:
        """The earliest time for the next worker to start."""
        return self.counted_at + self.delay if self.delay else 0.0

    def problem(self, now: float) -> str:
        """The current problem, for people; "" if there is none."""
        if self.failed_setups:
            again = f" (tried {self.failed_setups} times; next try in {human(self.delay)})"
            return self.why + (again if self.failed_setups > 1 else "")
        if self.early_deaths > _FREE and now < self.counted_at + _NEWS:
            return (
                f"crash loop: {self.early_deaths} workers died before finishing a job; next try in {human(self.delay)}"
            )
        return ""

    def died(self, now: float, *, early: bool, born: float = inf) -> Restarts:
        """A worker died by itself. `early`: before it had committed any job; `born`: when it was requested."""
        if not early:
            return self._replace(early_deaths=0)
        if born <= self.counted_at:
            return self
        deaths = self.early_deaths + 1
        delay = 0.0 if deaths <= _FREE else backoff(_FIRST_DELAY, deaths - _FREE, _LONGEST_DELAY)
        return self._replace(early_deaths=deaths, counted_at=now, delay=delay)

    def broken(self, now: float, why: str, *, born: float = inf) -> Restarts:
        """Import or set-up failed: an immediate retry would only fail again."""
        if born <= self.counted_at:
            return self
        failures = self.failed_setups + 1
        delay = backoff(_BROKEN_FIRST, failures, _BROKEN_LONGEST)
        return self._replace(failed_setups=failures, counted_at=now, delay=delay, why=shortened(why, _MAX_REASON))

    def ready(self) -> Restarts:
        """A worker has been set up. The cause of earlier failures is fixed, so earlier crashes no longer count."""
        return Restarts() if self.failed_setups else self

    def committed_a_job(self) -> Restarts:
        return Restarts()


ISOLATED_FROM = 2  # deaths
_REMEMBERED = 900.0  # seconds after which a death is forgotten
_QUIET = 30.0, 600.0  # seconds without a death that end an isolation: doubled with each further death; at most
_PAUSE = 0.1, 30.0  # the same until the next template


class TemplateDeaths(NamedTuple):
    """The deaths of a pool's templates. Times are monotonic seconds, oldest first; `charged` counts a job's crashes.

    Of templates that die after they were ready, some job kills them, and with them all their workers. No job is charged
    for the first such death: it may be an accident, and it is unknown which job it was. From the second death within a
    time window, the pools of that template are isolated: each gets a template of its own and one worker at a time, so
    that the next death identifies one job.
    """

    at: tuple[float, ...] = ()
    charged: Mapping[int, int] = {}

    def died(self, now: float) -> TemplateDeaths:
        return self._replace(at=(*(t for t in self.at if now - t < _REMEMBERED), now)[-32:])

    def charge(self, job: int, max_crashes: int) -> TemplateDeaths:
        """One job was charged; when it is permanently out of the queue, the record is cleared."""
        crashes = self.charged.get(job, 0) + 1
        return TemplateDeaths() if crashes >= max_crashes else self._replace(charged={**self.charged, job: crashes})

    @property
    def not_before(self) -> float:
        """The earliest time for the next template to start."""
        return self._after(*_PAUSE)

    def isolated(self, now: float) -> bool:
        return now < self.isolated_until

    @property
    def isolated_until(self) -> float:
        return self._after(*_QUIET)

    def _after(self, first: float, longest: float) -> float:
        """A time after the last death, later with each from the second on; 0 before that."""
        deaths = len(self.at) - ISOLATED_FROM + 1
        return self.at[-1] + backoff(first, deaths, longest) if deaths > 0 else 0.0


def is_far_over(used: int, limit: int) -> bool:
    """Whether a worker is so far over max_memory that it leaves before its successor is ready."""
    return used > limit * _FAR_OVER
