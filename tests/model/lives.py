"""The life and death of a pool's workers, one step at a time: kill signals, forked children, ruined workers, and
the messages by which a death reaches the maintainer.

What `tests/model/protocol.py` leaves out, because there a death is one step: a kill is decided, then delivered, then
the worker is dead, and in between its job may end and the next begin; a handler's child is a copy of all that its
worker has in hand; a worker may have finished what it can no longer commit; the report of a death can be lost with
the maintainer that got it, before it has settled it or after.

What becomes of the claims the product decides: `settle_held`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import Charge, JobPolicy, settle_held
from supervisor.domain.settlement import Failure, RetryPolicy
from tests.model.protocol import Violation

CRASHES = 2  # after which a job is quarantined
FREE = 1  # runs that ended, were not committed with their worker, and were charged to nobody: per job, alone
CRASH = Failure("crash", "the worker died")
POLICY = JobPolicy(RetryPolicy(max_attempts=9, base=0.0, jitter=0.0), max_crashes=CRASHES)

Named = tuple[int, int] | None  # (job, token), as a slot names a run


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes it safe, one switch a rule. All on is what is meant."""

    kill_names_its_run: bool = True
    child_ends_with_its_handler: bool = True
    child_leaves_the_slot: bool = True
    report_is_kept_until_acknowledged: bool = True
    reports_go_to_the_next_maintainer: bool = True
    acknowledged_only_when_settled: bool = True
    settling_names_the_dead: bool = True
    unsettled_is_told: bool = True
    second_time_it_is_a_crash: bool = True
    cautious_takes_one: bool = True


class Row(NamedTuple):
    """`cancel`: somebody has asked for it. `free`: how often a run of it ended, was lost with its worker, and was
    charged to nobody. `ruins`: its worker can commit nothing after it."""

    status: Status = Status.PENDING
    token: int = 0
    owner: int = 0
    crashes: int = 0
    cancel: bool = False
    ruins: bool = False
    free: int = 0


class Child(NamedTuple):
    """What a fork has copied: the run that it is in the midst of, and what is still in hand."""

    running: tuple[int, int]
    hand: tuple[tuple[int, int], ...]


class Worker(NamedTuple):
    """`slot` and `unsettled` (finished and not committed) is what the supervisor can see after its death."""

    name: int
    cautious: bool
    hand: tuple[tuple[int, int], ...] = ()
    running: Named = None
    slot: Named = None
    finished: tuple[tuple[int, int], ...] = ()
    ruined: bool = False
    child: Child | None = None


class Report(NamedTuple):
    name: int
    begun: Named
    charge: Charge


class State(NamedTuple):
    """`cautious`: the next worker takes one job at a time, because the last one died with something unsettled. `inbox`
    and `acks` are what is on its way in the channel; `up`: there is a maintainer. The last three bound what may happen.
    """

    rows: tuple[Row, ...]
    worker: Worker | None = None
    kill: Named = None  # decided for this run, and not yet delivered
    cautious: bool = False
    reports: tuple[Report, ...] = ()
    inbox: tuple[Report, ...] = ()
    settled: Report | None = None  # by a maintainer that has yet to say so
    acks: tuple[Report, ...] = ()
    up: bool = True
    names: int = 0
    kills: int = 1
    deaths: int = 2  # of maintainers
    forks: int = 1

    @property
    def finished(self) -> bool:
        return all(row.status.finished for row in self.rows) and not self.reports

    def row(self, job: int) -> Row:
        return self.rows[job - 1]

    def with_row(self, job: int, row: Row) -> State:
        return self._replace(rows=(*self.rows[: job - 1], row, *self.rows[job:]))


Step = tuple[str, State]


def canonical(state: State) -> State:
    """The same state with ranks for the workers' names and the tokens, which matter only by being equal."""
    worker, told = (
        state.worker,
        [*state.reports, *state.inbox, *state.acks, *([state.settled] if state.settled else [])],
    )
    names = {row.owner for row in state.rows} | {report.name for report in told} | ({worker.name} if worker else set())
    name = {old: new for new, old in enumerate(sorted(names - {0}), 1)} | {0: 0}
    runs = [(job, row.token) for job, row in enumerate(state.rows, 1)]
    runs += [run for run in (state.kill, *(report.begun for report in told)) if run]
    if worker:
        runs += [run for run in (*worker.hand, *worker.finished, worker.running, worker.slot) if run]
        runs += [worker.child.running, *worker.child.hand] if worker.child else []
    rank: dict[tuple[int, int], tuple[int, int]] = {}
    for job, token in sorted(set(runs)):
        rank[job, token] = (job, sum(other == job for other, _ in rank) + 1)

    def report(one: Report) -> Report:
        return Report(name[one.name], one.begun and rank[one.begun], one.charge)

    def each(some: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return tuple(rank[run] for run in some)

    if worker:
        child = worker.child and Child(rank[worker.child.running], each(worker.child.hand))
        worker = worker._replace(
            name=name[worker.name],
            hand=each(worker.hand),
            finished=each(worker.finished),
            running=worker.running and rank[worker.running],
            slot=worker.slot and rank[worker.slot],
            child=child,
        )
    return state._replace(
        rows=tuple(
            row._replace(token=rank[job, row.token][1], owner=name[row.owner]) for job, row in enumerate(state.rows, 1)
        ),
        worker=worker,
        kill=state.kill and rank[state.kill],
        reports=tuple(map(report, state.reports)),
        inbox=tuple(map(report, state.inbox)),
        settled=state.settled and report(state.settled),
        acks=tuple(map(report, state.acks)),
        names=len(name) - 1,
    )


@dataclass(frozen=True)
class Lives:
    """For `Search`. `ruins`: the first job does."""

    rules: Rules = Rules()
    jobs: int = 2
    ruins: bool = True
    cancel: bool = True
    kills: int = 1
    deaths: int = 1
    forks: int = 1

    def first(self) -> State:
        rows = [Row(ruins=self.ruins and job == 1) for job in range(1, self.jobs + 1)]
        return State(tuple(rows), kills=self.kills, deaths=self.deaths, forks=self.forks)

    def canonical(self, state: State) -> State:
        return canonical(state)

    def check(self, state: State, words: str) -> None:
        """What holds in every state. Raises Violation."""
        told = {report.name for report in (*state.reports, *state.inbox)}
        alive = state.worker.name if state.worker else 0
        for job, row in enumerate(state.rows, 1):
            if row.status is Status.RUNNING and row.owner != alive and row.owner not in told:
                raise Violation(f"{words}: nobody will settle job {job}, which worker {row.owner} held")
            if row.status is Status.CANCELLED and not row.cancel:
                raise Violation(f"{words}: job {job} is cancelled, which nobody has asked for")
            if row.status is Status.QUARANTINED and not row.ruins and not self.kills:
                raise Violation(f"{words}: job {job} is quarantined, which has harmed nobody")
            if row.free > FREE + (not row.ruins) + self.kills:
                raise Violation(f"{words}: job {job} has run {row.free} times for nothing")
        worker = state.worker
        if worker is not None and worker.slot != worker.running:
            raise Violation(f"{words}: worker {worker.name} runs {worker.running}, its slot says {worker.slot}")

    def steps(self, state: State) -> Iterator[Step]:
        worker = state.worker
        if worker is None:
            name = state.names + 1
            born = Worker(name, self.rules.second_time_it_is_a_crash and state.cautious)
            yield f"worker {name} is forked", state._replace(worker=born, names=name, cautious=False)
        else:
            yield from self._work(state, worker)
            if worker.child is not None:
                yield from self._run_on(state, worker, worker.child)
            yield from self._decide(state, worker)
        yield from self._talk(state)
        if self.cancel:
            for job, row in enumerate(state.rows, 1):
                if job == self.jobs and row.status is Status.RUNNING and not row.cancel:
                    yield f"somebody cancels job {job}", state.with_row(job, row._replace(cancel=True))

    # The worker

    def _work(self, state: State, worker: Worker) -> Iterator[Step]:
        yield from self._claim(state, worker)
        if worker.running is None and worker.hand:
            run, *rest = worker.hand
            begun = worker._replace(running=run, slot=run, hand=tuple(rest))
            yield f"worker {worker.name} begins job {run[0]}", state._replace(worker=begun)
        if worker.running is not None:
            yield from self._finish(state, worker, worker.running)
            if worker.child is None and state.forks:
                forked = worker._replace(child=Child(worker.running, worker.hand))
                yield f"job {worker.running[0]} forks", state._replace(worker=forked, forks=state.forks - 1)
        elif worker.finished and not worker.ruined:
            yield f"worker {worker.name} commits", self._committed(state, worker, worker.finished)
        if worker.ruined and worker.running is None:
            yield f"worker {worker.name} cannot commit, and dies", self._died(state, worker)

    def _claim(self, state: State, worker: Worker) -> Iterator[Step]:
        most = 1 if worker.cautious and self.rules.cautious_takes_one else 2
        free = most - len(worker.hand) - len(worker.finished) - (worker.running is not None)
        job = next((job for job, row in enumerate(state.rows, 1) if row.status is Status.PENDING), None)
        if job is not None and free > 0 and worker.running is None and not worker.ruined:
            row = state.row(job)
            row = row._replace(status=Status.RUNNING, token=row.token + 1, owner=worker.name)
            claimed = worker._replace(hand=(*worker.hand, (job, row.token)))
            yield f"worker {worker.name} claims job {job}", state.with_row(job, row)._replace(worker=claimed)

    def _finish(self, state: State, worker: Worker, run: tuple[int, int]) -> Iterator[Step]:
        ruined = worker.ruined or state.row(run[0]).ruins
        over = worker._replace(running=None, slot=None, finished=(*worker.finished, run), ruined=ruined)
        yield f"job {run[0]} ends", state._replace(worker=over)

    def _committed(self, state: State, worker: Worker, runs: tuple[tuple[int, int], ...]) -> State:
        for job, token in runs:
            row = state.row(job)
            if row.status is Status.RUNNING and (row.owner, row.token) == (worker.name, token):
                state = state.with_row(job, row._replace(status=Status.DONE, owner=0))
        return state._replace(worker=worker._replace(finished=()))

    # The copy

    def _run_on(self, state: State, worker: Worker, child: Child) -> Iterator[Step]:
        """Its handler has returned or raised, or called sys.exit."""
        ended = worker._replace(child=None)
        if self.rules.child_ends_with_its_handler:
            slot = worker.slot if self.rules.child_leaves_the_slot else None
            yield "the child ends", state._replace(worker=ended._replace(slot=slot))
            return
        if child.hand:
            raise Violation(f"the child begins job {child.hand[0][0]}, which is its worker's")
        after = self._committed(state, worker, (child.running,))
        if worker.running == child.running and after.rows != state.rows:
            raise Violation(f"the child settles job {child.running[0]}, which its worker still runs")
        yield "the child commits", after

    # Death

    def _decide(self, state: State, worker: Worker) -> Iterator[Step]:
        if state.kill is None and worker.slot is not None and state.row(worker.slot[0]).cancel:
            yield f"the supervisor decides to kill over job {worker.slot[0]}", state._replace(kill=worker.slot)
        if state.kill is not None:
            yield f"the kill meets worker {worker.name}", self._died(state, worker)
        elif state.kills:
            yield f"somebody kills worker {worker.name}", self._died(state._replace(kills=state.kills - 1), worker)

    def _died(self, state: State, worker: Worker) -> State:
        """What the supervisor makes of it, by the slot and by what it has done itself; and its report."""
        begun, cautious = worker.slot, worker.cautious
        charge: Charge = "crash"
        if state.kill is not None:
            charge = "cancel"
            if self.rules.kill_names_its_run and begun != state.kill:
                charge = "nothing"
        if self.rules.unsettled_is_told and worker.finished and begun is None:
            if len(worker.finished) == 1 and worker.cautious and state.kill is None:
                begun = worker.finished[0]
            cautious = True
        for job, _ in worker.finished:
            row = state.row(job)
            if begun is None or begun[0] != job:
                state = state.with_row(job, row._replace(free=row.free + 1))
        report = Report(worker.name, begun, charge)
        kept = (*state.reports, report) if self.rules.report_is_kept_until_acknowledged or not state.up else ()
        inbox = (*state.inbox, report) if state.up else ()
        return state._replace(worker=None, kill=None, cautious=cautious, reports=kept, inbox=inbox)

    # The channel, and the maintainer at its other end

    def _talk(self, state: State) -> Iterator[Step]:
        if state.settled is not None:
            told = state._replace(settled=None, acks=(*state.acks, state.settled))
            yield f"worker {state.settled.name}'s death is acknowledged", told
        elif state.inbox:
            report, *rest = state.inbox
            after = self._settled(state._replace(inbox=tuple(rest)), report)
            yield f"worker {report.name}'s death is settled", after._replace(settled=report)
            if not self.rules.acknowledged_only_when_settled:
                early = state._replace(acks=(*state.acks, report))
                if report not in state.acks and report in state.reports:
                    yield f"worker {report.name}'s death is acknowledged too early", early
        if state.acks:
            ack, *rest = state.acks
            kept = tuple(report for report in state.reports if report != ack)
            yield "the supervisor hears of it", state._replace(reports=kept, acks=tuple(rest))
        if state.up and state.deaths:
            # What it has said is still to be heard, what it was told is gone with it.
            gone = state._replace(up=False, inbox=(), settled=None, deaths=state.deaths - 1)
            yield "the maintainer dies", gone
        if not state.up:
            again = state.reports if self.rules.reports_go_to_the_next_maintainer else ()
            yield "another maintainer starts", state._replace(up=True, inbox=again)

    def _settled(self, state: State, report: Report) -> State:
        mine = [
            (job, row)
            for job, row in enumerate(state.rows, 1)
            if row.status is Status.RUNNING and (row.owner == report.name or not self.rules.settling_names_the_dead)
        ]
        held = [Claim(job, row.token, "t", "{}", 1, None, row.crashes) for job, row in mine]
        for end in settle_held(held, report.begun, report.charge, CRASH, POLICY, 0.5):
            row = state.row(end.job_id)
            status, token = end.status, row.token + (end.status is Status.PENDING)
            if status is Status.PENDING and row.cancel:
                status = Status.CANCELLED
            if state.worker is not None and row.owner == state.worker.name:
                raise Violation(f"worker {report.name}'s death takes job {end.job_id} from worker {row.owner}")
            after = row._replace(status=status, token=token, owner=0, crashes=row.crashes + end.crashes)
            state = state.with_row(end.job_id, after)
        return state
