"""The state of the protocol's model: rows, two supervisors with a worker each, a reclaimer, the time.

Numbers that matter only by being equal or later than others (tokens, lock times, incarnations) are written
anew in each state by their rank, so that a finite number of states is left.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.domain.job import Claim
from supervisor.store.base import Expired
from tests.model.rows import Row

WAITING, RUNNING, SUCCEEDED, FAILED = "waiting", "running", "succeeded", "failed"

# By the wall clock a lock holds or has run out; after the clock was set back it holds again.
HOLDS, RUN_OUT, HOLDS_AGAIN, RUN_OUT_AGAIN = range(4)

Begun = tuple[int, int] | None  # (job id, token), as a slot of the scoreboard tells


class Run(NamedTuple):
    """A claim in a worker's hand. `current` is what nobody in the model can see: whether it still counts."""

    claim: Claim
    stage: str = WAITING
    current: bool = True


class Worker(NamedTuple):
    name: str
    stopped: bool = False
    hand: tuple[Run, ...] = ()
    slot: Begun = None
    buried: bool = False  # recovered, and struck from the registry, although it lives


class Death(NamedTuple):
    """A worker that is dead and not yet settled: its supervisor reports it, or is dead too."""

    name: str
    begun: Begun
    reported: bool
    buried: bool = False
    charged: int = 0


class Tree(NamedTuple):
    """A supervisor with its maintainer, which sleep together, and one worker.

    `since`: ticks since it last renewed. `disturbed`: worker or maintainer was stopped since then.
    """

    letter: str
    up: bool = True
    asleep: bool = False
    worker: Worker | None = None
    dead: tuple[Death, ...] = ()
    since: int = 0
    disturbed: bool = False


class Watcher(NamedTuple):
    """A reclaimer, which belongs to neither. `gap` is ticks since its last look, `ripe` what it is about to take."""

    watched: tuple[tuple[Expired, float], ...] = ()
    gap: int = 0
    ripe: tuple[Expired, ...] = ()


class State(NamedTuple):
    """`locks`: what the wall clock says of each lock. `blocked`: another program holds the write lock;
    `open`: it was free at some time since the last tick. `frozen`: the whole machine was, since something is
    being watched.
    """

    rows: tuple[Row, ...]
    locks: tuple[int, ...]
    trees: tuple[Tree, ...]
    watcher: Watcher
    blocked: bool = False
    open: bool = True
    frozen: bool = False

    def row(self, job_id: int) -> Row:
        return self.rows[job_id - 1]

    def with_row(self, row: Row, lock: int) -> State:
        at = row.id - 1
        rows = (*self.rows[:at], row, *self.rows[at + 1 :])
        return self._replace(rows=rows, locks=(*self.locks[:at], lock, *self.locks[at + 1 :]))

    def with_tree(self, tree: Tree) -> State:
        return self._replace(trees=tuple(tree if tree.letter == other.letter else other for other in self.trees))

    def late(self) -> list[Row]:
        return [row for row, lock in zip(self.rows, self.locks, strict=True) if lock in (RUN_OUT, RUN_OUT_AGAIN)]

    @property
    def finished(self) -> bool:
        return all(row.status.finished for row in self.rows)


def beginning(jobs: int, letters: str) -> State:
    rows = tuple(Row(number, "t") for number in range(1, jobs + 1))
    return State(rows, (HOLDS,) * jobs, tuple(map(Tree, letters)), Watcher())


# Writing it anew


def canonical(state: State) -> State:
    """The same state with ranks for numbers. Most steps leave it as it is."""
    used = _Used(state)
    if used.dense:
        return state
    tokens, locks, names = used.ranks()

    def begun(run: Begun) -> Begun:
        return run and (run[0], tokens[run[0]][run[1]])

    def seen(row: Expired) -> Expired:
        job = row.job_id
        return Expired(job, tokens[job][row.token], names[row.owner], locks[job][row.expires_at])

    def run(one: Run) -> Run:
        claim = one.claim
        return one._replace(claim=claim._replace(token=tokens[claim.job_id][claim.token]))

    def worker(one: Worker | None) -> Worker | None:
        if one is None:
            return None
        return one._replace(name=names[one.name], hand=tuple(map(run, one.hand)), slot=begun(one.slot))

    def tree(one: Tree) -> Tree:
        dead = tuple(death._replace(name=names[death.name], begun=begun(death.begun)) for death in one.dead)
        return one._replace(worker=worker(one.worker), dead=dead)

    def row(one: Row) -> Row:
        one = one._replace(claim_token=tokens[one.id][one.claim_token])
        if one.locked_by is not None and one.lock_expires_at is not None:
            one = one._replace(locked_by=names[one.locked_by], lock_expires_at=locks[one.id][one.lock_expires_at])
        return one

    watcher = state.watcher
    watched = tuple((seen(row), age) for row, age in watcher.watched)
    return state._replace(
        rows=tuple(map(row, state.rows)),
        trees=tuple(map(tree, state.trees)),
        watcher=watcher._replace(watched=watched, ripe=tuple(map(seen, watcher.ripe))),
    )


class _Used:
    """The tokens and lock times of each job, and the lives of each letter, that anything still names."""

    __slots__ = ("lives", "locks", "tokens")

    def __init__(self, state: State) -> None:
        tokens = self.tokens = {row.id: {row.claim_token} for row in state.rows}
        locks = self.locks = {row.id: {row.lock_expires_at or 0.0} for row in state.rows}
        lives = self.lives = {tree.letter: set[int]() for tree in state.trees}
        for row in state.rows:
            if row.locked_by is not None:
                lives[row.locked_by[0]].add(LIFE[row.locked_by])
        for tree in state.trees:
            worker = tree.worker
            if worker is not None:
                lives[tree.letter].add(LIFE[worker.name])
                for run in worker.hand:
                    tokens[run.claim.job_id].add(run.claim.token)
                if worker.slot is not None:
                    tokens[worker.slot[0]].add(worker.slot[1])
            for death in tree.dead:
                lives[tree.letter].add(LIFE[death.name])
                if death.begun is not None:
                    tokens[death.begun[0]].add(death.begun[1])
        for seen in (*(row for row, _ in state.watcher.watched), *state.watcher.ripe):
            tokens[seen.job_id].add(seen.token)
            locks[seen.job_id].add(seen.expires_at)
            lives[seen.owner[0]].add(LIFE[seen.owner])

    @property
    def dense(self) -> bool:
        """Whether all numbers are their own ranks."""
        every = (*self.tokens.values(), *self.locks.values(), *self.lives.values())
        return all(max(numbers, default=-1) == len(numbers) - 1 for numbers in every)

    def ranks(self) -> tuple[dict[int, dict[int, int]], dict[int, dict[float, float]], dict[str, str]]:
        tokens = {job: dict(zip(sorted(numbers), range(9), strict=False)) for job, numbers in self.tokens.items()}
        locks = {
            job: dict(zip(sorted(numbers), map(float, range(9)), strict=False)) for job, numbers in self.locks.items()
        }
        names = {
            f"{letter}{life}": f"{letter}{rank}"
            for letter, lives in self.lives.items()
            for rank, life in enumerate(sorted(lives))
        }
        return tokens, locks, names


LIFE = {f"{letter}{life}": life for letter in "AB" for life in range(20)}
