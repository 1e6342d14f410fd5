"""No-op jobs a second with 1, 2, 8 and 12 workers; of the peers on Redis, of FlexiQ and of DBOS with 2 and 8. The
queue is filled first, and timed from the first job taken to the last, so that neither the start of the processes nor
their end counts.
"""

from __future__ import annotations

from functools import partial

from bench import floor, ours
from bench.contestant import ALL_COUNTS, Contestant
from bench.drain import drain
from bench.trial import AS_SAID, Reading, Session, Trial

TITLE = "Throughput: no-op jobs a second"
UNITS = {"throughput": "jobs/s", "dead workers": "processes"}
ROUNDS = AS_SAID
WORKERS = ALL_COUNTS
_SECONDS = 4.0  # at most, where many workers get in each other's way


def trials(session: Session) -> list[Trial]:
    contestants: list[Contestant] = [ours.AUTO, ours.ONE, *session.peers]
    floors = [
        Trial(name, "1", partial(_floor, session, loop, session.pick(jobs, jobs // 5)))
        for name, (loop, jobs) in floor.LOOPS.items()
    ]
    found: list[Trial] = []
    for workers in session.pick(WORKERS, (2, 8)):
        found += floors if workers == 2 else []  # beside the figures that are compared with them
        found += [
            Trial(one.name, str(workers), partial(_measure, session, one, workers))
            for one in contestants
            if workers in one.worker_counts
        ]
    return found


def _measure(session: Session, contestant: Contestant, workers: int) -> Reading:
    jobs = session.pick(contestant.size, contestant.size // 4)
    with session.scratch() as folder:
        count, dead = drain(folder, contestant, workers, jobs, _SECONDS)
    return {"throughput": [count.rate], "dead workers": [dead]}


def _floor(session: Session, loop: floor.Loop, jobs: int) -> Reading:
    with session.scratch() as folder:
        return {"throughput": [floor.rate(folder, loop, jobs)]}
