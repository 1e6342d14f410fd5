"""Every step that anybody may take in the protocol of claims, locks and tokens, one at a time.

What is decided, the product decides: `settle_held`, `settle_interrupted`, `settle_expired`, `done`, `failed`
and `released`, `judge`, `LeaseObserver` and `patience` are its own, and what a statement makes of a row is what
`tests/model/rows.py` says, which the state machine holds to the real store. The wall clock does as it likes:
at any time any lock may look expired, or not expired any more. The monotonic clock moves by ticks, as long as
a reclaimer leaves between two looks; it stands still until every maintainer has renewed that is due to, if it
can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.domain.job import Status
from supervisor.domain.recovery import (
    JobPolicy,
    LeaseObserver,
    observation_time,
    settle_expired,
    settle_held,
    settle_interrupted,
)
from supervisor.domain.settlement import Failure, Settlement, released
from supervisor.store.base import Expired
from tests.model import rows
from tests.model.guards import ALL, Guards
from tests.model.moves import (
    LOCK_TIME,
    LONGEST_GAP,
    RENEWAL,
    RENEWED,
    TICK,
    Step,
    claim_of,
    claimed_by,
    end_of,
    held_by,
    job,
    names_of,
    policy_of,
    renewal,
    settled,
    stop,
    taken,
    tick,
    tree_now,
    with_run,
)
from tests.model.rows import Row
from tests.model.world import (
    FAILED,
    HOLDS,
    HOLDS_AGAIN,
    LIFE,
    RUN_OUT,
    RUN_OUT_AGAIN,
    RUNNING,
    SUCCEEDED,
    WAITING,
    Death,
    Run,
    State,
    Tree,
    Worker,
    beginning,
    canonical,
)

CRASH = Failure("crash", "the worker died")
_NEXT = {HOLDS: RUN_OUT, RUN_OUT: HOLDS_AGAIN, HOLDS_AGAIN: RUN_OUT_AGAIN, RUN_OUT_AGAIN: HOLDS_AGAIN}


class Violation(Exception):
    """What must never happen."""


@dataclass(frozen=True)
class Protocol:
    """What there is, and what may happen. Without `timing` anybody may be as slow as it likes, which includes
    being stopped, and whatever has run out may be taken.
    """

    guards: Guards = ALL
    jobs: int = 1
    letters: str = "AB"  # supervisors
    hand: int = 2  # claims that a worker holds at most
    deaths: int = 1  # of a supervisor's workers that wait to be settled at most
    chances: int = 2  # attempts, and crashes, after which a job has failed
    kills: bool = True  # of workers and supervisors
    clock: bool = True  # by which locks run out
    timing: bool = True  # ticks, renewals, and how patient a reclaimer is
    stops: bool = True  # of workers and maintainers
    blocks: bool = True  # of the database by another program, and of the whole machine
    unsure: bool = True  # whether what was written was written

    @property
    def policy(self) -> JobPolicy:
        return policy_of(self.chances)

    def first(self) -> State:
        return beginning(self.jobs, self.letters)

    def canonical(self, state: State) -> State:
        return canonical(state)

    def check(self, state: State, words: str) -> None:
        check(state, words, self.chances)

    def steps(self, state: State) -> Iterator[Step]:
        """What may happen next. A step that must not be possible raises Violation when it is drawn."""
        for tree in state.trees:
            if tree.worker is not None and not tree.worker.stopped:
                yield from self._work(state, tree, tree.worker)
            if self.stops:
                yield from stop(tree, state)
            if self.kills:
                yield from self._kill(state, tree)
            if tree.up and not tree.asleep:
                yield from self._maintain(state, tree)
        yield from self._watch(state)
        if self.clock:
            yield from self._time(state)

    # A worker

    def _work(self, state: State, tree: Tree, worker: Worker) -> Iterator[Step]:
        for at, run in enumerate(worker.hand):
            if run.stage == WAITING and worker.slot is None:
                begun = run.claim.job_id, run.claim.token
                yield f"{worker.name} begins {job(run)}", with_run(state, tree, at, run, RUNNING, begun)
            elif run.stage == RUNNING:
                yield f"{worker.name}'s handler returns", with_run(state, tree, at, run, SUCCEEDED)
                yield f"{worker.name}'s handler raises", with_run(state, tree, at, run, FAILED)
        if state.blocked:
            return
        if len(worker.hand) < self.hand:
            yield from self._claim(state, tree, worker)
        for at, run in enumerate(worker.hand):
            if run.stage != RUNNING:
                yield from self._settle(state, tree, worker, at)

    def _claim(self, state: State, tree: Tree, worker: Worker) -> Iterator[Step]:
        row = next((row for row in state.rows if row.status is Status.PENDING), None)
        if row is not None:
            row = claimed_by(row, worker.name, self.guards)
            hand = (*worker.hand, Run(claim_of(row)))
            claimed = state.with_row(row, HOLDS).with_tree(tree._replace(worker=worker._replace(hand=hand)))
            yield f"{worker.name} claims job {row.id}", claimed

    def _settle(self, state: State, tree: Tree, worker: Worker, at: int) -> Iterator[Step]:
        run = worker.hand[at]
        words, end = end_of(run, self.policy)
        what = f"{worker.name} {words} {job(run)}"
        row = self._written(state, worker.name, end)
        rest = tree._replace(worker=worker._replace(hand=(*worker.hand[:at], *worker.hand[at + 1 :])))
        if row is None:
            yield f"{what}: refused", state.with_tree(rest)
            return
        if not run.current:
            raise Violation(f"{what}: written, and not refused")
        yield what, taken(state, row).with_tree(rest)
        if not self.unsure:
            return
        # It may not hear that it was written, and will then write it again.
        again = with_run(taken(state, row), tree, at, run._replace(current=False), run.stage)
        yield f"{what}, and does not hear of it", again

    def _written(self, state: State, owner: str, end: Settlement) -> Row | None:
        before = state.row(end.job_id)
        row = settled(before, owner, end, self.guards)
        if row is not None and before.status.finished:
            raise Violation(f"{owner} wrote a second outcome of job {end.job_id}: {end.status} after {before.status}")
        return row

    # Deaths

    def _kill(self, state: State, tree: Tree) -> Iterator[Step]:
        worker = tree.worker
        if worker is not None and len(tree.dead) < self.deaths:
            death = Death(worker.name, worker.slot, tree.up, worker.buried)
            forgotten = worker.buried and not self.guards.recovery_looks_again
            dead = tree.dead if forgotten else (*tree.dead, death)
            what = f"{worker.name} is killed" if tree.up else f"{worker.name} follows its supervisor"
            yield what, state.with_tree(tree._replace(worker=None, dead=dead))
        if tree.up:
            dead = tuple(death._replace(reported=False) for death in tree.dead)
            yield (
                f"supervisor {tree.letter} is killed",
                state.with_tree(tree._replace(up=False, asleep=False, dead=dead)),
            )
        elif worker is None:
            yield f"supervisor {tree.letter} starts again", state.with_tree(tree._replace(up=True))

    def _maintain(self, state: State, tree: Tree) -> Iterator[Step]:
        """What the maintainer of a supervisor does for its own worker."""
        if tree.worker is None and all(death.reported or death.buried for death in tree.dead):
            # No worker is forked before recovery is done; but at once after a death.
            life = 1 + max((LIFE[name] for name in names_of(state, tree)), default=-1)
            born = tree._replace(worker=Worker(f"{tree.letter}{life}"), disturbed=False)
            yield f"{tree.letter} forks {tree.letter}{life}", state.with_tree(born)
        if state.blocked:
            return
        for death in tree.dead:
            if death.reported:
                yield from self._report(state, tree, death)
        if self.timing and tree.worker is not None and tree.since >= RENEWAL:
            for renewed in RENEWED[tree.worker.stopped]:
                yield renewal(state, tree, tree.worker, renewed)

    def _report(self, state: State, tree: Tree, death: Death) -> Iterator[Step]:
        held, begun = held_by(state, death.name), death.begun
        if not self.guards.only_what_began_is_charged and held and begun is None:
            begun = held[0].job_id, held[0].token
        if not self.guards.charge_names_its_claim and begun is not None:
            begun = next(((claim.job_id, claim.token) for claim in held if claim.job_id == begun[0]), begun)
        ends = settle_held(held, begun, "crash", CRASH, self.policy, 0.5)
        after, charged = self._buried(state, death, ends, known=True)
        rest = tuple(d for d in tree.dead if d is not death)
        yield f"{death.name}'s death is settled", after.with_tree(tree_now(after, tree)._replace(dead=rest))
        if not self.unsure:
            return
        told_again = tuple(d._replace(charged=charged) if d is death else d for d in tree.dead)
        yield (
            f"{death.name}'s death is settled, unheard",
            after.with_tree(tree_now(after, tree)._replace(dead=told_again)),
        )

    def _buried(self, state: State, death: Death, ends: Sequence[Settlement], *, known: bool) -> tuple[State, int]:
        charged = death.charged
        for end in ends:
            row = self._written(state, death.name, end)
            if row is not None:
                charged += end.crashes
                if end.crashes and known and death.begun != (end.job_id, end.token):
                    raise Violation(f"{death.name}'s death is charged to job {end.job_id}, which had not begun")
                state = taken(state, row)
        if charged > 1:
            raise Violation(f"{death.name}'s death is charged {charged} times")
        return state, charged

    def _recover(self, state: State) -> Iterator[Step]:
        """Any maintainer that works, for a supervisor that is dead; its last worker may still live for a moment."""
        for tree in state.trees:
            for death in tree.dead:
                if not death.reported:
                    for words, after in self._bury(state, death):
                        rest = tuple(other for other in tree.dead if other is not death)
                        yield words, after.with_tree(tree_now(after, tree)._replace(dead=rest))
            worker = tree.worker
            if worker is not None and not tree.up:
                for words, after in self._bury(state, Death(worker.name, worker.slot, False, worker.buried)):
                    rest = tree_now(after, tree)
                    assert rest.worker is not None
                    yield words, after.with_tree(rest._replace(worker=rest.worker._replace(buried=True)))

    def _bury(self, state: State, death: Death) -> Iterator[Step]:
        held = held_by(state, death.name)
        if death.buried:
            again, _ = self._buried(state, death, [released(claim) for claim in held], known=True)
            yield f"what {death.name} has claimed since is recovered", again
            return
        for known, words in ((True, ""), (False, ", its scoreboard lost")):
            begun = (death.begun or (0, 0)) if known else None
            ends = settle_interrupted(held, begun, self.policy, 0.5)
            after, _ = self._buried(state, death, ends, known=known)
            yield f"what {death.name} held is recovered{words}", after

    # The reclaimer, which looks when it likes: in time, late, or stopped between look and deed

    def _watch(self, state: State) -> Iterator[Step]:
        watcher = state.watcher
        if watcher.watched or state.late():
            yield self._look(state)
        if not state.blocked:
            yield from self._recover(state)
            for seen in watcher.ripe:
                yield self._reclaim(state, seen)

    def _look(self, state: State) -> Step:
        guards, watcher = self.guards, state.watcher
        patient = observation_time(LOCK_TIME) * guards.patience
        late = [row.expired for row in state.late()]
        every = TICK if guards.late_looks_prove_little else 1e9
        writable = not state.blocked or not guards.reclaimer_tries_to_write
        observer = LeaseObserver(every, 0.0, dict(watcher.watched)).look(late, watcher.gap * TICK, writable=writable)
        patient = 0.0 if not self.timing or not guards.reclaimer_is_patient else patient
        ripe = tuple(row for row in late if observer.watched[row] >= patient)
        watched = tuple((row, min(age, patient)) for row, age in observer.watched.items())
        seen = ", ".join(f"job {row.job_id}" for row in late) or "nothing"
        words = f"the reclaimer sees {seen} expired" + (" for long enough" if ripe else "")
        frozen = state.frozen and bool(watched)
        return words, state._replace(watcher=watcher._replace(watched=watched, gap=0, ripe=ripe), frozen=frozen)

    def _reclaim(self, state: State, seen: Expired) -> Step:
        left = tuple(row for row in state.watcher.ripe if row != seen)
        state = state._replace(watcher=state.watcher._replace(ripe=left))
        row = state.row(seen.job_id)
        what = f"the reclaimer takes job {seen.job_id} from {seen.owner}"
        if not rows.reclaimable(row, seen, self.guards):
            return f"{what}: refused", state
        after = self._written(state, seen.owner, settle_expired(claim_of(row), seen.owner, self.policy, 0.5))
        # Set back and forth again between two looks, the clock may deceive: that is no fault of the reclaimer's.
        if self.timing and state.locks[row.id - 1] in (HOLDS, RUN_OUT):
            for tree in state.trees:
                worker = tree.worker
                renewing = worker is not None and worker.name == seen.owner and tree.up and not tree.asleep
                if renewing and not worker.stopped and not tree.disturbed:
                    raise Violation(f"{what}, which lives and renews it")
        return what, state if after is None else taken(state, after)

    # Time

    def _time(self, state: State) -> Iterator[Step]:
        for row, lock in zip(state.rows, state.locks, strict=True):
            if row.status is Status.RUNNING:
                words = "has run out" if lock in (HOLDS, HOLDS_AGAIN) else "holds again"
                yield f"the clock says that job {row.id}'s lock {words}", state.with_row(row, _NEXT[lock])
        if self.timing:
            yield from self._pass(state)

    def _pass(self, state: State) -> Iterator[Step]:
        if self.blocks and state.blocked:
            yield "another program lets the database go", state._replace(blocked=False, open=True)
        elif self.blocks:
            yield "another program blocks the database", state._replace(blocked=True)
        if not state.open or not any(self._must_renew(tree) for tree in state.trees):
            yield "a tick", tick(state)
        if self.blocks and state.watcher.watched and not state.frozen:
            watcher = state.watcher._replace(gap=LONGEST_GAP)
            yield "the whole machine is frozen for a while", state._replace(watcher=watcher, frozen=True)

    def _must_renew(self, tree: Tree) -> bool:
        return tree.up and not tree.asleep and tree.worker is not None and tree.since >= RENEWAL


def check(state: State, words: str, chances: int) -> None:
    """What holds in every state. Raises Violation."""
    workers = [tree.worker for tree in state.trees if tree.worker is not None]
    known = {worker.name for worker in workers} | {death.name for tree in state.trees for death in tree.dead}
    for row in state.rows:
        if row.status is Status.RUNNING and row.locked_by not in known:
            raise Violation(f"{words}: nobody will bury {row.locked_by}, which holds job {row.id}")
        if row.status is Status.PENDING and max(row.attempts, row.crashes) >= chances:
            raise Violation(f"{words}: job {row.id} waits with its attempts or crashes used up")
    for worker in workers:
        for run in worker.hand:
            row = state.row(run.claim.job_id)
            if not run.current and not row.status.finished and row.claim_token == run.claim.token:
                raise Violation(f"{words}: {worker.name} has lost job {row.id}, and its token is still the job's")
