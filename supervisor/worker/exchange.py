"""The only way in which a worker touches the table of jobs: one connection, one lock, one transaction a turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from supervisor.domain.job import Claim, RunKey
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Claims, Engine, JobSelector, SettledAndClaimed, WorkerRecord
from supervisor.system import descriptors, settled_notice
from supervisor.system.scoreboard import ClaimGate
from supervisor.system.slot import Slot
from supervisor.telemetry import JobEvents
from supervisor.worker import returned_fork
from supervisor.worker.fitness import Ruined
from supervisor.worker.held import Held
from supervisor.worker.recorder import RunCounter
from supervisor.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

_FIRST, _MOST = 0.05, 5.0  # seconds between attempts while the database is unavailable
_IMPATIENT = 0.5  # seconds for which other writers are waited for while a job runs
_AT_ONCE = 16  # settlements in a transaction while a job runs: if a trigger refuses one, each takes one of its own
_MOST_CANCELS = 5000

Found = TypeVar("Found")


class Exchange:
    """Settles and claims what the worker has `held`: whoever has time calls `turn`, or `aside` while a run takes long.
    A lock keeps them apart.

    A claim is shown in the slot before it is made: when this process dies, the table may have it although no answer has
    come. `failed` is told of each error of a turn, and may raise Ruined; `running` are the runs that have begun and not
    ended.
    """

    def __init__(
        self,
        engine: Engine,
        record: WorkerRecord,
        pool: PoolSettings,
        slot: Slot,
        gate: ClaimGate,
        counter: RunCounter,
        wakeups: Wakeups,
        log: Any,
        *,
        keep_done: bool = True,
    ) -> None:
        self._engine = engine
        self._record = record
        self._policy = pool.policy
        self._wanted = JobSelector(pool.types, " ".join(pool.capabilities), pool.min_priority)
        self._lock_time = pool.lock_time
        self._impatient = min(_IMPATIENT, pool.heartbeat_timeout / 4)
        self._slot = slot
        self.gate = gate
        self._counter = counter
        self._wakeups = wakeups
        self._log = log
        self._events = JobEvents(log)
        self._keep_done = keep_done
        self._lock = threading.Lock()
        self.held = Held()
        self._settled = 0  # runs whose outcome is committed
        self._generation = 0
        self._pause = 0.0
        self.looked = -inf  # when it has last seen, with no doubt left, what is due, in monotonic seconds
        self._unsure = False  # the table may have claims for this worker of which it does not know
        self.failed: Callable[[StoreError], None] = lambda error: None
        self.running: Callable[[], Collection[RunKey]] = tuple

    # The transactions

    def turn(self, want: int, *, posted: bool = False) -> list[Claim]:
        """Settle what has ended, return what is not run, and claim up to `want` more, in one transaction. The new
        claims are held, too.

        An unavailable database is waited for, and nothing is lost meanwhile. `posted`: somebody has just seen a due
        job. Raises Ruined if this process keeps itself waiting, and no job runs that could end that, or if it must not
        write any more.
        """
        returned_fork.leave()
        if descriptors.gone():  # otherwise SQLite might write to what a handler has opened in place of its files
            raise Ruined("a handler has closed all descriptors, the worker's own with them")
        with self._lock:
            try:
                return self._turn(want, posted)
            except StoreError as error:
                problem = error
        self.failed(problem)
        self._wait(problem)
        return []

    def _turn(self, want: int, posted: bool = False, *, most: int | None = None, busy_for: float = 0.0) -> list[Claim]:
        """Settle at most this many. `busy_for`: for how many seconds a run is on that is not one of the `running`."""
        running = len(self.running()) + (busy_for > 0)
        settlements, runs = self.held.take_settlements(most)
        if not (settlements or want):
            return []
        if want and not (settlements or running or self.held.waiting):
            self._slot.page.claims = 1  # before it is claimed: the answer may be long in coming, or lost
        now, looked = self.gate.now(), monotonic()
        self.looked = -inf if want else self.looked
        try:
            answer = self._transact(settlements, want, now, posted)
        except BaseException:  # whatever it is, nothing is lost
            self.held.put_back(settlements, runs)
            self._show(running)
            raise
        self._recovered()
        claims = answer.claims
        self._note(settlements, runs, answer, now - busy_for, more=bool(claims))
        if self._unsure and want and not self.held:
            self.held.give_back(self._unknown({(claim.job_id, claim.token) for claim in claims}))
        self.held.add(claims)
        if want and answer.registered and not self._unsure:
            self.looked = looked
        self._show(running)
        return claims

    def aside(self, busy_for: float) -> None:
        """While the run that is on has taken `busy_for` seconds: settle what had ended before, and return the
        claims that have not begun, so that nothing waits for it. What fails is tried again with the next call.
        """
        self._counter.flush()
        if not self.held or descriptors.gone():  # the main thread will see why, and exit
            return
        with self._lock:
            self.held.release()
            try:
                with self._impatience():
                    while self.held.unsettled:
                        self._slot.beat()
                        self._turn(0, most=_AT_ONCE, busy_for=busy_for)
            except StoreError as error:
                self._note_busy(error)
                self._log.warning("hand_back_failed", error=str(error))

    def show_progress(self, run: RunKey, batch: int, fraction: float, text: str) -> bool:
        """What a run reports of its progress; in a `batch` of this size, to all its jobs. False: try it again later."""
        self._slot.beat()
        if descriptors.gone():
            return True
        owner = self._record.incarnation
        # A turn may wait long for other writers: that must not keep a thread from its heartbeats and time limits.
        if not self._lock.acquire(timeout=self._impatient):
            return False
        try:
            with self._impatience():
                # What has not begun was returned long ago, so what is held is the batch.
                runs = [run] if batch == 1 else [(claim.job_id, claim.token) for claim in self._store.held_by(owner)]
                self._store.show_progress(owner, runs, fraction, text, time())
        except StoreUnavailable:
            return False
        except StoreError:
            return True  # the database refuses it: the job goes on without
        finally:
            self._lock.release()
        return True

    @contextmanager
    def _impatience(self) -> Iterator[None]:
        """Other writers are waited for less long, by a thread that has other tasks: heartbeats, and time limits."""
        self._slot.beat()
        self._store.be_patient(self._impatient)
        try:
            yield
        finally:
            with suppress(StoreError):  # a lost connection has no settings
                self._store.be_patient(None)

    def _transact(self, settlements: Sequence[Settlement], want: int, now: float, posted: bool) -> SettledAndClaimed:
        """While jobs may be claimed, register again where that is needed."""
        if want and not self.gate.is_open():
            want = 0
        elif want and (generation := self.gate.generation) != self._generation:
            self._store.register(self._record)  # another host may have taken this one for dead
            self._generation = generation
        try:
            answer = self._store.settle_and_claim(
                self._record.incarnation, settlements, self._wanted, want, self._lock_time, now, posted=posted
            )
        except StoreError as error:
            self._unsure = self._unsure or want > 0
            if isinstance(error, StoreBusy) and error.here and not self._slot.read().running:
                problem = f"a handler left a database transaction open that this worker waits for: {error.who}"
                raise Ruined(problem) from None
            raise
        if not answer.registered:
            # A crash of the server has undone it, or somebody has deleted the row. The next turn claims.
            self._log.warning("registered_again")
            with suppress(StoreError):  # what is settled is settled; the next turn meets the error again
                self._store.register(self._record)
        if settlements:
            settled_notice.notify()
        return answer

    def _note(
        self, settlements: list[Settlement], runs: int, answer: SettledAndClaimed, until: float, *, more: bool = False
    ) -> None:
        """These are committed; their runs had ended by `until`, Unix seconds."""
        self._unsure = self._unsure or answer.doubtful
        if runs:
            self._settled += runs
            self._slot.page.settled = self._settled
        if settlements:
            self._counter.settled(settlements, answer.lost, until, more)
        for job in answer.lost:
            self._log.warning("claim_lost", job=job, result="discarded")
        for job, reason in answer.refused:  # rows that the database does not allow to be claimed or settled
            self._log.warning("row_refused", job=job, reason=reason, result="quarantined")
        for settlement in settlements:
            claim = settlement.claim
            if settlement.failure is not None and claim is not None and claim.job_id not in answer.lost:
                attempts = self._policy.retry_of(claim.type).attempts_for(claim.max_attempts)
                self._events.settled(settlement, max_attempts=attempts)
        self._events.tell_rest()

    def _show(self, running: int) -> None:
        """Have the locks of these renewed, and of those of which it does not know."""
        self._slot.page.claims = running + len(self.held) + self._unsure

    # What else the table says

    def _unknown(self, known: set[RunKey]) -> list[Claim]:
        """What the table has for this worker beside the `known` and the running claims: those whose answer was lost, or
        whose settlement the server has undone. They may have run, and must return to the queue, under another token:
        no other worker would ever run them, since their locks are renewed as long as this one lives.
        """
        known = known.union(self.running())
        try:
            held = self._store.held_by(self._record.incarnation)
        except StoreError:  # it is still unsure
            return []
        self._unsure = False
        return [claim for claim in held if (claim.job_id, claim.token) not in known]

    def limits(self, claims: Sequence[Claim]) -> Mapping[int, int]:
        """With how many jobs each of these may run together whose batch, or neighbour, has killed a worker before."""
        try:
            return self._persist(lambda: self._store.limits([claim.job_id for claim in claims]))
        except StoreError:
            return {}  # the worker exits, and runs none of them

    def cancels(self) -> Collection[RunKey]:
        """The runs of this worker that are to be cancelled, if more are than a slot can hold. On a connection of its
        own: it may be asked while a turn waits.
        """
        try:
            with closing(self._engine.operations()) as operations:
                cancels = operations.controls.cancels(self._record.supervisor, _MOST_CANCELS)
        except StoreError:
            return ()
        return {(job, token) for job, token, owner in cancels if owner == self._record.incarnation}

    # The connection, and how long it is waited for

    def open(self) -> None:
        """Connect and enter the worker in the registry, which another start would not make easier. Raises StoreError if
        the worker is to exit before that is possible.
        """
        self._generation = self.gate.generation
        self._store = self._persist(self._registered)

    def _registered(self) -> Claims:
        store = self._engine.claims(keep_done=self._keep_done)
        try:
            store.register(self._record)
        except StoreError:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._events.tell_rest(now=True)  # how many failures were not logged one by one
        self._store.close()

    def _persist(self, attempt: Callable[[], Found]) -> Found:
        """Try until it succeeds. Raises StoreError if the worker is to exit."""
        while True:
            try:
                found = attempt()
            except StoreError as error:
                if self._slot.page.drain:
                    raise
                self._wait(error)
            else:
                self._recovered()
                return found

    @property
    def in_doubt(self) -> bool:
        """Whether the last access has failed, or the next one finds out what the table has for this worker."""
        return self._pause > 0.0 or (self._unsure and not self.held.waiting)

    def _wait(self, error: StoreError) -> None:
        """Until the next attempt, or a signal."""
        self._note_busy(error)
        if not self._pause:
            self._log.error("store_failed", error=str(error))
        self._slot.progress(-1.0, "")
        self._slot.tell(str(error))
        self._pause = min(max(self._pause * 2, _FIRST), _MOST)
        self._wakeups.pause(self._pause)

    def _note_busy(self, error: StoreError) -> None:
        if isinstance(error, StoreBusy):
            self._counter.row.busy()

    def _recovered(self) -> None:
        if self._pause:
            self._pause = 0.0
            self._slot.tell("")
            self._log.info("store_recovered")
