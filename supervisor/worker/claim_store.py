"""A worker's access to the table of jobs. While the database is unavailable it waits, and reports why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Claims, Engine, Exchange, JobSelector, WorkerRecord
from supervisor.system import settled_notice
from supervisor.system.claim_gate import ClaimGate
from supervisor.system.slot import Slot
from supervisor.worker.counting import Counter
from supervisor.worker.fitness import Ruined
from supervisor.worker.wakeups import Wakeups

_FIRST, _MOST = 0.05, 5.0  # seconds between attempts

Answer = TypeVar("Answer")


@dataclass(eq=False)
class ClaimStore:
    """`wanted` are the jobs that it claims, for `lock_time` seconds, while the `gate` is open. `unavailable` from the
    first error to `over`.
    """

    engine: Engine
    record: WorkerRecord
    wanted: JobSelector
    lock_time: float
    slot: Slot
    gate: ClaimGate
    counter: Counter
    wakeups: Wakeups
    log: Any
    keep_done: bool = True
    unsure: bool = field(default=False, init=False)  # the table may have claims for it that it does not know of

    def __post_init__(self) -> None:
        self._pause = 0.0

    def register(self) -> None:
        """Open the store and enter the worker, which another start would not make easier. Raises StoreError if the
        worker is to exit before that is possible.
        """
        self._generation = self.gate.generation
        self._store = self._persist(self._registered)

    def _registered(self) -> Claims:
        store = self.engine.claims(keep_done=self.keep_done)
        try:
            store.register(self.record)
        except StoreError:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._store.close()

    def settle_and_claim(self, settlements: Sequence[Settlement], want: int, now: float, posted: bool) -> Exchange:
        """In one transaction. `posted`: somebody has just seen a due job.

        Raises StoreError; call `wait` then, and `over` when it succeeds again. Raises Ruined if this process keeps
        itself waiting, and no job runs that could end that.
        """
        wanted = self.wanted
        if want:
            wanted = wanted.narrowed(self.gate.unpaused(wanted.types))
        if want and not (wanted.types and self.gate.is_open()):
            want = 0
        elif want and (generation := self.gate.generation) != self._generation:
            self._store.register(self.record)  # another host may have taken this one for dead
            self._generation = generation
        exchange = self._exchange(settlements, wanted, want, now, posted)
        if not exchange.registered:
            # A crash of the server has undone it, or somebody has deleted the row.
            self.log.warning("registered_again")
            with suppress(StoreError):  # what is settled is settled; the next exchange meets the error again
                self._store.register(self.record)
                again = self._exchange([], wanted, want, now, posted)
                return again._replace(lost=[*exchange.lost, *again.lost], refused=[*exchange.refused, *again.refused])
        return exchange

    def _exchange(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, now: float, posted: bool
    ) -> Exchange:
        owner = self.record.incarnation
        try:
            exchange = self._store.settle_and_claim(
                owner, settlements, wanted, want, self.lock_time, now, posted=posted
            )
        except StoreError as error:
            self.unsure = self.unsure or want > 0
            if isinstance(error, StoreBusy) and error.here and not self.slot.read().running:
                problem = f"a handler left a database transaction open that this worker waits for: {error.who}"
                raise Ruined(problem) from None
            raise
        self.unsure = self.unsure or exchange.doubtful
        if settlements:
            settled_notice.notify()
        return exchange

    def others(self, known: Set[tuple[int, int]]) -> list[Claim]:
        """What the table has for this worker beside the known (job, token): claims whose answer was lost, or whose
        settlement the server has undone. They may have run, and must return to the queue, under another token: no other
        worker would ever run them, since their locks are renewed as long as this one lives.
        """
        try:
            held = self._store.held_by(self.record.incarnation)
        except StoreError as error:  # it is still unsure
            if not known:  # those must not wait
                self.wait(error)
            return []
        self.unsure = False
        return [claim for claim in held if (claim.job_id, claim.token) not in known]

    def limits(self, claims: Sequence[Claim]) -> Mapping[int, int]:
        """How many jobs may run together with each job whose batch has killed a worker before."""
        try:
            return self._persist(lambda: self._store.limits([claim.job_id for claim in claims]))
        except StoreError:
            return {}  # the worker exits, and runs none of them

    def _persist(self, attempt: Callable[[], Answer]) -> Answer:
        """Try until it succeeds. Raises StoreError if the worker is to exit."""
        while True:
            try:
                answer = attempt()
            except StoreError as error:
                if self.slot.requests.drain_requested:
                    raise
                self.wait(error)
            else:
                self.recovered()
                return answer

    @property
    def unavailable(self) -> bool:
        return self._pause > 0.0

    def wait(self, error: StoreError) -> None:
        """Wait until the next attempt, or a signal."""
        self.counter.store_failed(error)
        if not self._pause:
            self.log.error("store_failed", error=str(error))
        self.slot.work.forget_progress()
        self.slot.tell(str(error))
        self._pause = min(max(self._pause * 2, _FIRST), _MOST)
        self.wakeups.pause(self._pause)

    def recovered(self) -> None:
        """An access has succeeded."""
        if self._pause:
            self._pause = 0.0
            self.slot.tell("")
            self.log.info("store_recovered")
