"""What a worker's batches consist of: the first `batch_size` jobs, or those with one key, within a budget, in a size
that it finds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, inf

# Imported by name, as in the executor: a handler that replaces it must not affect the loop.
from time import monotonic
from typing import TYPE_CHECKING, Any

from supervisor.domain.batching import AutoBatchSize, Candidate, as_cost, as_key, at_path, together
from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement
from supervisor.worker import forked
from supervisor.worker.context import JobInterrupted
from supervisor.worker.executor import decoded, described
from supervisor.worker.handler import AnyHandler, HandlerError
from supervisor.worker.outcomes import BadPayload

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

_MOST_CLAIMED = 256
_LEAST_SHARE = 0.25  # of the claims that have the first one's key: with less, batches are not full
_WEIGHT = 0.5  # of the latest claims in the averages
_PAUSE = 60.0  # seconds between two log lines about a method that fails: it may do so for every job

Ask = Callable[[Any], Any]


def plan_of(pool: PoolSettings, handler: AnyHandler, log: Any, *, cautious: bool = False) -> BatchPlan:
    """Raises HandlerError if nobody says what a job costs. A `cautious` worker runs one job at a time."""
    if cautious:
        return BatchPlan(1, inf, None, None, None, log=log)
    own_key, own_cost = (getattr(handler, name, None) for name in ("batch_key", "batch_cost"))
    key = partial(at_path, path=pool.batch_key) if pool.batch_key else own_key
    cost = partial(at_path, path=pool.batch_cost) if pool.batch_cost else own_cost
    if pool.batch_budget is None:
        cost = None
    elif cost is None:
        why = "batch_budget needs batch_cost: a field of the payload, or a method batch_cost(payload) of the handler"
        raise HandlerError(why)
    size = AutoBatchSize(pool.batch_size, pool.latency_target) if pool.batch_auto else None
    asks = (key is not None and not pool.batch_key) or (cost is not None and not pool.batch_cost)
    return BatchPlan(pool.batch_size, pool.batch_budget or inf, size, key, cost, asks_handler=asks, log=log)


class BatchPlan:
    """`auto` decides the size, at most `most`, if it is given. `key` and `cost` are asked of each payload, which is the
    handler's own code if `asks_handler`.
    """

    def __init__(
        self,
        most: int,
        budget: float,
        auto: AutoBatchSize | None,
        key: Ask | None,
        cost: Ask | None,
        *,
        asks_handler: bool = False,
        log: Any = None,
    ) -> None:
        self._most = most
        self._budget = budget
        self._auto = auto
        self._key = key
        self._cost = cost
        self.asks_handler = asks_handler
        self._log = log
        self._limits: Mapping[int, int] = {}
        self._ordinary = True  # no job of the batch was in one that went wrong
        self._share = 1.0  # average part of the claims that have the first one's key
        self._affordable = float(most)  # average number of jobs within the budget
        self._ended: float | None = None  # when the last batch did, if the worker has had jobs since
        self._told = -_PAUSE

    @property
    def size(self) -> int:
        """How many jobs a batch should have."""
        return self._most if self._auto is None else self._auto.size

    @property
    def want(self) -> int:
        """How many to claim for that: more if the jobs have different keys, fewer if the budget ends batches sooner."""
        jobs = min(self.size, 1.5 * self._affordable + 1)
        return min(_MOST_CLAIMED, ceil(jobs / max(self._share, _LEAST_SHARE)))

    @property
    def selects(self) -> bool:
        """Whether a batch does not simply consist of the first jobs."""
        return bool(self._key or self._cost or self._limits)

    def begin(self, limits: Mapping[int, int], rested: bool) -> None:
        self._limits = limits
        self._ordinary = not limits
        if rested:
            self._ended = None

    def look(self, claim: Claim) -> Candidate:
        """A job for which that fails runs alone: what is wrong with it is its own."""
        most = self._limits.get(claim.job_id, self._most)
        if self._key is None and self._cost is None:
            return Candidate("", 0.0, most)
        try:
            payload = decoded(claim.payload)
            key = "" if self._key is None else as_key(self._key(payload))
            cost = 0.0 if self._cost is None else as_cost(self._cost(payload))
        except JobInterrupted:
            raise
        except BaseException as error:
            forked.leave(error)
            if not isinstance(error, BadPayload):
                self._tell(claim, error)
            return Candidate(None, 0.0, 1)
        forked.leave()
        return Candidate(key, cost, most)

    def divide(self, looked: Sequence[tuple[Claim, Candidate]]) -> tuple[list[Claim], list[Claim]]:
        """The claims that run together now, and the others."""
        if not looked:
            return [], []
        candidates = [candidate for _, candidate in looked]
        chosen = together(candidates, self.size, self._budget)
        self._learn(candidates, len(chosen))
        self._ordinary = all(looked[place][0].job_id not in self._limits for place in chosen)
        if len(chosen) == len(looked):
            return [claim for claim, _ in looked], []
        places = set(chosen)
        return [looked[place][0] for place in chosen], [
            claim for place, (claim, _) in enumerate(looked) if place not in places
        ]

    def _learn(self, candidates: Sequence[Candidate], chosen: int) -> None:
        first = candidates[0].key
        same = sum(candidate.key == first for candidate in candidates)
        if len(candidates) > 1:
            self._share += _WEIGHT * (same / len(candidates) - self._share)
        if chosen < same and chosen < self.size:
            self._affordable += _WEIGHT * (chosen - self._affordable)
        else:
            self._affordable = max(self._affordable, chosen)

    def ran(self, settlements: Sequence[Settlement], began: float, ended: float) -> None:
        """A batch has run; times are monotonic seconds. One of which nothing succeeded says nothing about its size."""
        if self._auto is None:
            return
        between = None if self._ended is None else began - self._ended
        self._ended = ended
        if self._ordinary and any(settlement.status is Status.DONE for settlement in settlements):
            self._auto.observe(len(settlements), ended - began, between)

    def too_large(self, size: int) -> bool:
        """A batch has run out of memory. Whether the next ones will be smaller for that."""
        if self._auto is None:
            return False
        if self._ordinary:
            self._auto.out_of_memory(size)
        return True

    def _tell(self, claim: Claim, error: BaseException) -> None:
        now = monotonic()
        if self._log is None or now - self._told < _PAUSE:
            return
        self._told = now
        hint = "the job runs alone; this is logged once a minute at most"
        self._log.warning("batch_not_planned", job=claim.job_id, type=claim.type, error=described(error)[0], hint=hint)
