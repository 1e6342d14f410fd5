"""Parts of the protocol's steps: what becomes of a row, a claim in a hand, a lock, a tick."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from supervisor.domain.job import Claim, Status
from supervisor.domain.process_health import Signs, Verdict, judge
from supervisor.domain.recovery import JobPolicy, observation_time, renewal_interval
from supervisor.domain.settlement import Failure, RetryPolicy, Settlement, done, failed, released
from tests.model import rows
from tests.model.guards import ALL, Guards
from tests.model.rows import Row
from tests.model.world import FAILED, HOLDS, RUNNING, SUCCEEDED, Begun, Run, State, Tree, Worker

LOCK_TIME = 60.0
TICK = observation_time(LOCK_TIME) / 4  # seconds: how often a reclaimer means to look
RENEWAL = round(renewal_interval(LOCK_TIME) / TICK)  # ticks
LONGEST_GAP = 2  # ticks between two looks; a later one tells no more
BROKEN = Failure("exception", "ValueError")

# Whether a worker's lock is renewed, by the signs of it: well, or late but using CPU, or stopped for long.
_TIMEOUT = 60.0
_EARLIER = Signs(at=100.0, beat=0.0, cpu=0.0, state="R")
_SIGNS = {
    False: [Signs(200.0, 200.0, 0.0, "S"), Signs(200.0, 0.0, 90.0, "R")],
    True: [Signs(200.0, 200.0, 0.0, "T"), Signs(200.0, 0.0, 90.0, "T")],
}
RENEWED = {
    stopped: sorted({judge(signs, _EARLIER, _TIMEOUT) not in (Verdict.STOPPED, Verdict.STUCK) for signs in possible})
    for stopped, possible in _SIGNS.items()
}

Step = tuple[str, State]


def job(run: Run) -> str:
    return f"job {run.claim.job_id}" + ("" if run.current else " by a claim that it has lost")


def tree_now(state: State, tree: Tree) -> Tree:
    return next(other for other in state.trees if other.letter == tree.letter)


def with_run(state: State, tree: Tree, at: int, run: Run, stage: str, slot: Begun = None) -> State:
    worker = tree.worker
    assert worker is not None
    if run.stage == RUNNING or slot is not None:
        worker = worker._replace(slot=slot)
    hand = (*worker.hand[:at], run._replace(stage=stage), *worker.hand[at + 1 :])
    return state.with_tree(tree._replace(worker=worker._replace(hand=hand)))


def end_of(run: Run, policy: JobPolicy) -> tuple[str, Settlement]:
    if run.stage == SUCCEEDED:
        return "settles", done(run.claim, None, started_at=0.0)
    if run.stage == FAILED:
        return "settles the failure of", failed(run.claim, BROKEN, policy.retry, chance=0.5)
    return "gives back", released(run.claim)


def taken(state: State, row: Row) -> State:
    """The row has left its claim, whoever holds that."""
    state = state.with_row(row, HOLDS)
    for tree in state.trees:
        worker = tree.worker
        if worker is not None and any(run.current and run.claim.job_id == row.id for run in worker.hand):
            hand = tuple(run._replace(current=run.current and run.claim.job_id != row.id) for run in worker.hand)
            state = state.with_tree(tree._replace(worker=worker._replace(hand=hand)))
    return state


def held_by(state: State, owner: str) -> list[Claim]:
    return [claim_of(row) for row in state.rows if row.status is Status.RUNNING and row.locked_by == owner]


def names_of(state: State, tree: Tree) -> list[str]:
    """Every incarnation of this letter that anything still names."""
    names = [row.locked_by for row in state.rows if row.locked_by]
    names += [row.owner for row, _ in state.watcher.watched] + [row.owner for row in state.watcher.ripe]
    names += [death.name for death in tree.dead]
    return [name for name in names if name[0] == tree.letter]


def renewal(state: State, tree: Tree, worker: Worker, renewed: bool) -> Step:
    for row in state.late():
        if renewed and row.locked_by == worker.name:
            state = state.with_row(row._replace(lock_expires_at=(row.lock_expires_at or 0.0) + 1), HOLDS)
    disturbed = tree.disturbed and (worker.stopped or not renewed)
    words = f"{worker.name}'s locks are renewed" if renewed else f"{worker.name}'s locks are not renewed: it is stopped"
    return words, state.with_tree(tree._replace(since=0, disturbed=disturbed))


def stop(tree: Tree, state: State) -> Iterator[Step]:
    worker = tree.worker
    if worker is not None:
        words = "goes on" if worker.stopped else "is stopped"
        changed = tree._replace(worker=worker._replace(stopped=not worker.stopped), disturbed=True)
        yield f"{worker.name} {words}", state.with_tree(changed)
    if tree.up:
        words = "goes on" if tree.asleep else "is stopped"
        yield (
            f"maintainer {tree.letter} {words}",
            state.with_tree(tree._replace(asleep=not tree.asleep, disturbed=True)),
        )


def tick(state: State) -> State:
    gap = min(state.watcher.gap + 1, LONGEST_GAP) if state.watcher.watched else 0
    trees = tuple(tree._replace(since=min(tree.since + 1, RENEWAL)) for tree in state.trees)
    watcher = state.watcher._replace(gap=gap)
    return state._replace(trees=trees, watcher=watcher, open=not state.blocked)


# Rows, without what decides nothing here


def _plain(row: Row) -> Row:
    return row._replace(result=None, progress=None, last_error=None, started_at=None, completed_at=None, locked_at=None)


@cache
def policy_of(chances: int) -> JobPolicy:
    return JobPolicy(RetryPolicy(max_attempts=chances, base=0.0, jitter=0.0), max_crashes=chances, lock_time=LOCK_TIME)


@cache
def claimed_by(row: Row, owner: str, guards: Guards) -> Row:
    return _plain(rows.claimed(row, owner, 0.0, 0.0, guards))


# Every settlement that was tried, and what became of its row: for the real store to be asked the same.
SETTLED: dict[tuple[Row, str, Settlement], Row | None] = {}


@cache
def settled(row: Row, owner: str, end: Settlement, guards: Guards) -> Row | None:
    after = rows.settled(row, owner, end, 0.0, guards)
    if guards == ALL:
        SETTLED[row, owner, end] = after
    return after and _plain(after)


@cache
def claim_of(row: Row) -> Claim:
    return Claim(row.id, row.claim_token, row.type, "{}", row.attempts, row.max_attempts, row.crashes)
