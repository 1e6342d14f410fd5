"""What becomes of the claims of workers that died or do not answer: charged, returned, or taken over when expired."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from supervisor.domain.job import Claim
from supervisor.domain.settlement import (
    Failure,
    FollowUps,
    RetryPolicy,
    Settlement,
    Usage,
    cancelled,
    crashed,
    failed,
    released,
    suspected,
)

Charge = Literal["crash", "attempt", "cancel", "nothing"]


class JobPolicy(NamedTuple):
    """`recover` decides about a job that was interrupted together with its supervisor; `lock_time`, in seconds, is how
    long others must wait for the locks of this pool.
    """

    retry: RetryPolicy = RetryPolicy()
    max_crashes: int = 3
    recover: Literal["pending", "failed"] = "pending"
    lock_time: float = 60.0
    retry_by_type: Mapping[str, RetryPolicy] = {}
    follow_ups: Mapping[str, FollowUps] = {}

    def retry_of(self, type: str) -> RetryPolicy:
        return self.retry_by_type.get(type, self.retry)

    def followed(self, settlement: Settlement) -> Settlement:
        """The same, with what follows if the job has ended. A plain success that nothing follows stays one."""
        follow = self.follow_ups.get(settlement.claim.type) if settlement.claim is not None else None
        if follow is None or (settlement.simple and follow.on_done is None):
            return settlement
        return settlement._replace(follow=follow)

    def encode(self) -> str:
        by_type = {type_: _fields(retry) for type_, retry in self.retry_by_type.items()}
        return json.dumps(self._asdict() | {"retry": _fields(self.retry), "retry_by_type": by_type})

    @classmethod
    def decode(cls, text: str) -> JobPolicy:
        """The defaults for anything unreadable: recovery must continue whatever the row contains."""
        try:
            fields = json.loads(text)
            return cls(
                _retry(fields["retry"]),
                int(fields["max_crashes"]),
                fields["recover"],
                float(fields["lock_time"]),
                {type_: _retry(retry) for type_, retry in fields["retry_by_type"].items()},
                {type_: FollowUps(*types) for type_, types in fields.get("follow_ups", {}).items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()


def _fields(policy: RetryPolicy) -> dict[str, Any]:
    # Without what is for exceptions: a death has none, and releases before this key could not read the policy.
    return {name: value for name, value in policy._asdict().items() if name != "on"}


def _retry(fields: dict[str, Any]) -> RetryPolicy:
    policy = RetryPolicy(**fields)
    return policy._replace(give_up_on=tuple(policy.give_up_on))


def settle_held(
    held: list[Claim],
    begun: tuple[int, int] | None,
    charge: Charge,
    failure: Failure,
    policy: JobPolicy,
    chance: float,
    batch: int = 1,
) -> list[Settlement]:
    """The settlements for a dead worker's claims: the started one is charged, the others are returned.

    `begun` is (job id, token); None means that none had started. A claim that is no longer the one named is
    not charged. In a `batch` that had started together, each job is suspected and none is charged.
    """
    if begun and batch > 1 and charge != "nothing":
        return [suspected(claim, batch, usage=_known(failure)) for claim in held]
    return [
        _settle(claim, charge, failure, policy, chance) if begun == (claim.job_id, claim.token) else released(claim)
        for claim in held
    ]


def with_log(settlements: list[Settlement], begun: tuple[int, int] | None, log: str | None) -> list[Settlement]:
    """The same, with the known output of the run that had started."""
    if log is None:
        return settlements
    return [
        s._replace(usage=(s.usage or Usage())._replace(log=log)) if begun == (s.job_id, s.token) else s
        for s in settlements
    ]


def _settle(claim: Claim, charge: Charge, failure: Failure, policy: JobPolicy, chance: float) -> Settlement:
    retry = policy.retry_of(claim.type)
    if charge == "crash":
        return policy.followed(crashed(claim, failure, retry, policy.max_crashes, chance=chance))
    if charge == "attempt":
        return policy.followed(failed(claim, failure, retry, chance=chance))
    if charge == "cancel":
        return cancelled(claim, usage=_known(failure))
    return released(claim, usage=_known(failure))


def _known(failure: Failure) -> Usage:
    """For an end that leaves no row in `job_errors`."""
    return Usage(duration=failure.duration, peak_memory=failure.peak_memory, log=failure.stderr)


def settle_interrupted(
    held: list[Claim], begun: tuple[int, int] | None, policy: JobPolicy, chance: float, batch: int = 1
) -> list[Settlement]:
    """The same for a worker whose supervisor is dead.

    If it is unknown which job had started, it is taken to be the first in order, so that a poisonous job
    cannot loop across restarts.
    """
    if begun is None and held:
        begun = (held[0].job_id, held[0].token)
    failure = Failure("interrupted", "its supervisor died while the job was running")
    if policy.recover == "failed":
        return [
            policy.followed(failed(claim, failure, policy.retry_of(claim.type), chance=chance, permanent=True))
            if begun == (claim.job_id, claim.token) or batch > 1
            else released(claim)
            for claim in held
        ]
    return settle_held(held, begun, "crash", failure, policy, chance, batch)


def settle_expired(claim: Claim, owner: str, policy: JobPolicy, chance: float) -> Settlement:
    """The settlement for a claim whose lock has expired. A foreign claim may not have counted an attempt."""
    foreign = owner == "foreign"
    failure = Failure(
        "expired",
        "a foreign program claimed it and did not settle it in time"
        if foreign
        else "its lock expired: the worker was stopped, or cannot be reached",
    )
    retry = policy.retry_of(claim.type)
    settled = policy.followed(crashed(claim, failure, retry, policy.max_crashes, chance=chance))
    return settled._replace(attempts=0) if foreign else settled


Row = TypeVar("Row", bound=Hashable)

# The share of the time between two looks that one look can prove at most. With a share this small, an owner still has
# time to renew if the whole machine was frozen once and the database blocked once, and the observer saw neither.
_CREDIT = 1.25


def renewal_interval(lock_time: float) -> float:
    """Seconds between two renewals of locks that hold for `lock_time` seconds."""
    return max(0.1, lock_time / 6)


def observation_time(lock_time: float) -> float:
    """Seconds for which such a lock is observed before it is taken: at least two renewals."""
    return max(0.4, lock_time / 3)


class LeaseObserver(NamedTuple, Generic[Row]):
    """When an expired lock may be taken: after it was observed for a while, expired and unchanged throughout.

    A live owner renews its locks every `renewal_interval`, and a renewed lock differs from the one that was observed: a
    row is a lock exactly as stored. So an observer that has watched a lock for longer than that, on a monotonic clock
    and while writing was possible, knows that its owner does not renew it, whatever the wall clock says.

    `every` is the planned time between two looks, `looked` the time of the last look, `watched` the time for
    which it has seen each row: all in seconds of its own monotonic clock.
    """

    every: float
    looked: float = 0.0
    watched: Mapping[Row, float] = {}

    def look(self, rows: Iterable[Row], at: float, *, writable: bool) -> LeaseObserver[Row]:
        """These rows have expired. If writing was not possible, their owners could not renew: start again.

        A late look proves no more than one that is on time: the observer may have been stopped together with
        the owners.
        """
        credit = min(at - self.looked, self.every * _CREDIT)
        seen = self.watched if writable else {}
        return LeaseObserver(self.every, at, {row: seen[row] + credit if row in seen else 0.0 for row in rows})


_SLEWED = 1.0  # seconds between two notes: a smaller difference is an adjustment, not a jump
_KEPT = 100  # jumps


class Clocks:
    """Receives both clocks regularly. A suspend, during which the monotonic clock stops, looks like a jump, too."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (steady start, wall minus steady)

    def note(self, wall: float, steady: float) -> None:
        """Both clocks now: Unix seconds, monotonic seconds."""
        difference = wall - steady
        if not self._stretches or abs(difference - self._stretches[-1][1]) > _SLEWED:
            self._stretches.append((steady, difference))

    def steadily(self, wall: float) -> float:
        """The latest monotonic time at which the wall clock may have shown `wall`: in doubt, the younger age.

        Before the first note the same offset is assumed; a time that it has never shown is dated by its last jump.
        """
        end = float("inf")
        for number, (start, difference) in reversed(list(enumerate(self._stretches))):
            steady = wall - difference
            if steady < end and (steady >= start - _SLEWED or number == 0):
                return steady
            end = start
        return wall - self._stretches[-1][1]
