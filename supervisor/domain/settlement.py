"""The end of one run of a job: what is written to its row, and when a failed or crashed job runs again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from supervisor.domain.errors import Retry
from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.polling import backoff
from supervisor.domain.text import LONGEST_DELAY, compact_json
from supervisor.domain.values import MAX_PAYLOAD_BYTES

Backoff = Literal["exponential", "linear", "fixed"]


class RetryPolicy(NamedTuple):
    """How many attempts a job gets and how long it waits in between. `base` and `max` are seconds.

    `give_up_on` are names of exceptions after which another attempt is pointless; `on` has what differs after some
    exceptions, by their names.
    """

    max_attempts: int = 5
    backoff: Backoff = "exponential"
    base: float = 2.0
    max: float = 600.0
    jitter: float = 0.1
    give_up_on: tuple[str, ...] = ()
    on: Mapping[str, Mapping[str, Any]] = {}

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after the given number of failures (1 = the first).

        `chance` in 0…1 places the delay within ± jitter, so that jobs that failed together do not run again
        together.
        """
        if self.backoff == "exponential":
            delay = backoff(self.base, failures, self.max)
        elif self.backoff == "linear":
            delay = self.base * failures
        else:
            delay = self.base
        return min(delay, self.max) * (1 + self.jitter * (2 * chance - 1))

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether the exception or a class that it is derived from is listed. Of a group of exceptions, each one must
        be; `Retry` never is.
        """
        if isinstance(error, Retry):
            return False
        if _listed(self.give_up_on, error) is not None:
            return not (isinstance(error, BaseExceptionGroup) and error.subgroup(Retry))
        return isinstance(error, BaseExceptionGroup) and all(map(self.gives_up_on, error.exceptions))

    def gives_up_after(self, message: str) -> bool:
        """The same for a program's error, which is known by a message that begins with its class."""
        return _listed_for(self.give_up_on, message) is not None

    def after(self, error: BaseException) -> RetryPolicy:
        """The policy after this exception: that of its nearest class in `on`. Without one, a group of exceptions that
        all have the same entry has that one, too.
        """
        return self._with(self._entry(error)) if self.on else self

    def after_message(self, message: str) -> RetryPolicy:
        """The same for a program's error."""
        return self._with(_listed_for(self.on, message)) if self.on else self

    def _entry(self, error: BaseException) -> str | None:
        found = {_listed(self.on, error)}
        if found == {None} and isinstance(error, BaseExceptionGroup):
            found = {self._entry(each) for each in error.exceptions}
        return found.pop() if len(found) == 1 else None

    def _with(self, entry: str | None) -> RetryPolicy:
        return self if entry is None else self._replace(**self.on[entry])

    def attempts_for(self, max_attempts: int | None) -> int:
        """The limit of one job: its own if it has one, otherwise the pool's."""
        return self.max_attempts if max_attempts is None else max_attempts


def _listed(names: Iterable[str], error: BaseException) -> str | None:
    """Which of these names the exception has, or the nearest class that it is derived from: with or without its module,
    or that under which another module exports it.
    """
    return next((name for cls in type(error).__mro__ for name in names if _is(cls, name)), None)


def _is(cls: type, name: str) -> bool:
    module, _, exported = name.rpartition(".")
    listed = getattr(sys.modules.get(module), exported, None)
    if isinstance(listed, type):
        return listed is cls
    return name in (cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}")


def _listed_for(names: Iterable[str], message: str) -> str | None:
    """Which of these names an error has whose message begins with its class."""
    name = message.partition(":")[0].strip()
    return next((each for each in (name, name.rpartition(".")[2]) if each in names), None)


MAX_MESSAGE = 2000  # characters of last_error: a line in a list, not a log
MAX_TEXT = 64 * 1024  # characters of a traceback or a tail of stderr


class Failure(NamedTuple):
    """Why a run did not succeed: a row of `job_errors`. `duration` is seconds, `peak_memory` bytes."""

    kind: str
    message: str
    traceback: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stderr: str | None = None
    peak_memory: int | None = None
    duration: float | None = None


class Usage(NamedTuple):
    """What a run used and printed: a row of `job_runs`. None means unknown.

    `started_at` is Unix seconds; `duration` and `cpu_time`, user and system together, are seconds; `peak_memory`
    is bytes.
    """

    started_at: float | None = None
    duration: float | None = None
    cpu_time: float | None = None
    peak_memory: int | None = None
    log: str | None = None


class FollowUps(NamedTuple):
    """The types of the jobs that follow the jobs of one type, when they are done and when they have failed for good."""

    on_done: str | None = None
    on_failed: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FollowUps:
        """Those of a type, from its table or its decorator."""
        return cls(*(options.get(name) for name in cls._fields))


class Settlement(NamedTuple):
    """The new state of a claimed job. `delay` is the seconds until a pending one is due again; with 0 it keeps
    its old place in the order.

    `pause` is the seconds for which no job with its key starts. `attempts` and `crashes` are added to the row's
    counters: the claim has already counted the attempt, so returning it is −1. `usage` is set for a run that gets a row
    of its own, `claim` is what it settles, for the counters, `follow` what is enqueued if it is the last one. A tuple,
    because thousands are made a second.
    """

    job_id: int
    token: int
    status: Status
    result: str | None = None
    progress: float | None = None
    delay: float = 0.0
    attempts: int = 0
    crashes: int = 0
    failure: Failure | None = None
    children: tuple[NewJob, ...] = ()
    started_at: float | None = None
    usage: Usage | None = None
    batch_limit: int = 0  # the size limit for batches with this job from now on; 0: unchanged
    claim: Claim | None = None
    pause: float = 0.0
    follow: FollowUps | None = None

    @property
    def simple(self) -> bool:
        """A plain success. There are thousands a second, so they are settled together by one statement."""
        return self.status is Status.DONE and not self.children and self.follow is None


def done(
    claim: Claim,
    result: str | None,
    *,
    started_at: float | None = None,
    progress: float | None = None,
    children: tuple[NewJob, ...] = (),
    usage: Usage | None = None,
) -> Settlement:
    """`progress` is what the run reported last. A job that is done has come all the way."""
    if progress is not None:
        progress = 1.0
    # By position, which is faster: thousands are made a second.
    return Settlement(
        claim.job_id, claim.token, Status.DONE, result, progress, 0.0, 0, 0, None, children, started_at, usage, 0, claim
    )


def _settled(claim: Claim, status: Status, **others: Any) -> Settlement:
    return Settlement(claim.job_id, claim.token, status, claim=claim, **others)


def released(claim: Claim, *, usage: Usage | None = None) -> Settlement:
    """Not started, or interrupted through no fault of its own: back in its place, uncharged."""
    return _settled(claim, Status.PENDING, attempts=-1, usage=usage)


def snoozed(claim: Claim, delay: float, *, started_at: float | None = None) -> Settlement:
    """The handler asked to run it later. The attempt does not count."""
    return released(claim)._replace(delay=min(delay, LONGEST_DELAY), started_at=started_at)


def suspected(claim: Claim, batch: int, *, usage: Usage | None = None) -> Settlement:
    """A job of a batch that failed or killed its worker. It is unknown which job was the cause, so none is charged,
    and half as many run together next time.
    """
    return released(claim, usage=usage)._replace(batch_limit=(batch + 1) // 2)


def cancelled(claim: Claim, *, started_at: float | None = None, usage: Usage | None = None) -> Settlement:
    failure = Failure("cancelled", "cancelled while running")
    return _settled(claim, Status.CANCELLED, failure=failure, started_at=started_at, usage=usage)


def failed(
    claim: Claim,
    failure: Failure,
    policy: RetryPolicy,
    *,
    chance: float,
    permanent: bool = False,
    after: float | None = None,
    pause: float = 0.0,
    started_at: float | None = None,
    progress: float | None = None,
) -> Settlement:
    """An attempt that failed: due again after a delay, or `failed` with its attempts used up.

    `after` is the delay in seconds that the handler asked for, `pause` that for all with its key; `chance` in 0…1
    decides the jitter.
    """
    if permanent or claim.attempt >= policy.attempts_for(claim.max_attempts):
        status, delay = Status.FAILED, 0.0
    else:
        delay = policy.delay(claim.attempt, chance) if after is None else min(after, LONGEST_DELAY)
        status = Status.PENDING
    return _settled(claim, status, delay=delay, failure=failure, started_at=started_at, progress=progress, pause=pause)


def crashed(claim: Claim, failure: Failure, policy: RetryPolicy, max_crashes: int, *, chance: float) -> Settlement:
    """The worker died running it: the attempt is returned, a crash is charged; too many quarantine it. It runs again at
    once the first time, then with backoff.
    """
    crashes = claim.crashes + 1
    if crashes >= max_crashes:
        status, delay = Status.QUARANTINED, 0.0
    else:
        status, delay = Status.PENDING, 0.0 if crashes == 1 else policy.delay(crashes - 1, chance)
    return _settled(claim, status, delay=delay, attempts=-1, crashes=1, failure=failure)


def follow_up(settlement: Settlement) -> tuple[NewJob, ...]:
    """The job that is enqueued with this settlement, as its last: one or none."""
    status, claim, types = settlement.status, settlement.claim, settlement.follow or FollowUps()
    ends = {Status.DONE: types.on_done, Status.FAILED: types.on_failed, Status.QUARANTINED: types.on_failed}
    type_, failure, result = ends.get(status), settlement.failure, settlement.result or "null"
    if type_ is None or claim is None:
        return ()
    error = None if failure is None else clipped(failure.message, MAX_MESSAGE)
    about = {"job": claim.job_id, "type": claim.type, "status": status.value, "error": error}
    payload = f'{compact_json(about)[:-1]},"result":{result}}}'
    if (size := len(payload.encode())) > MAX_PAYLOAD_BYTES:
        why = f"the result is left out: with it, this payload has {size} bytes; the limit is {MAX_PAYLOAD_BYTES}"
        payload = compact_json(about | {"error": why, "result": None})
    return (NewJob(type_, payload),)


def run_of(settlement: Settlement) -> tuple[str, Usage] | None:
    """(outcome, usage) of the run that this settles, or None for a run without a row.

    Missing values come from its failure: for a worker that died there is nothing else.
    """
    usage, failure = settlement.usage, settlement.failure
    if failure is not None:
        usage = usage or Usage()
        return failure.kind, usage._replace(
            duration=failure.duration if usage.duration is None else usage.duration,
            peak_memory=failure.peak_memory if usage.peak_memory is None else usage.peak_memory,
        )
    if usage is None:
        return None
    return ("released" if settlement.status is Status.PENDING else settlement.status.value), usage


def clipped(text: str, limit: int) -> str:
    """At most `limit` characters. The beginning of a longer text is kept, since an exception's class stands there, and
    more of its end, since the last lines of a traceback state the cause.

    What UTF-8 cannot encode, lone surrogates in some exception's message, is escaped: the database would reject it, and
    with it the settlement. NUL characters are replaced: SQLite would show no text behind one.
    """
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\ufffd")
    begin = limit // 4
    return text if len(text) <= limit else f"{text[:begin]} … {text[len(text) - limit + begin + 3 :]}"
