"""Several real processes claim from one queue: each job is run by exactly one of them."""

from __future__ import annotations

import collections
import signal
import subprocess

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import released
from tests.store.kit import NOW, T0, Desk, python

JOBS = 4000
PROCESSES = 4

# Claims and settles until nothing is left, with batches of its own size, and prints what it ran.
CLAIMER = """
import sys
from supervisor.domain.errors import StoreBusy
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.store.base import JobSelector

url, name, want = sys.argv[1], sys.argv[2], int(sys.argv[3])
claims = open_engine(url).claims()
wanted = JobSelector(("tag", "caption", "child"), "cpu")
settlements, ran = [], []
print("ready", flush=True)
sys.stdin.readline()
while True:
    exchange = claims.settle_and_claim(name, settlements, wanted, want, 60.0, 1001000.0)
    assert exchange.lost == [], exchange.lost
    if not exchange.claims:
        break
    ran += [f"{claim.job_id}:{claim.token}" for claim in exchange.claims]
    if len(sys.argv) > 4 and len(ran) > 50:
        print("holding", flush=True)
        sys.stdin.readline()
    settlements = [done(claim, None) for claim in exchange.claims]
print(" ".join(ran))
"""


def start(desk: Desk, name: str, want: int, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python("-c", CLAIMER, desk.engine.url, name, str(want), *more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def test_no_job_is_given_to_two_processes_and_none_is_left(desk: Desk) -> None:
    jobs = [
        NewJob(("tag", "caption")[n % 2], "{}", n % 5 - 2, ("", "cpu")[n % 3 == 0], T0 + n % 7) for n in range(JOBS)
    ]
    ids = desk.producer.enqueue(jobs)
    processes = [start(desk, f"w{n}", want) for n, want in enumerate((1, 7, 16, 64))]
    go(processes)

    ran = collections.Counter(
        int(word.split(":")[0]) for process in processes for word in process.communicate(timeout=60)[0].split()
    )

    assert [process.returncode for process in processes] == [0] * PROCESSES
    assert ran == collections.Counter(ids)
    assert {status for _, status, _ in desk.operations.statistics.counts()} == {Status.DONE}


def test_what_a_killed_claimer_held_runs_once_more_and_nothing_else_does(desk: Desk) -> None:
    ids = desk.producer.enqueue([NewJob("tag", "{}", scheduled_at=T0) for _ in range(500)])
    victim = start(desk, "victim", 20, "hold")
    go([victim])
    assert victim.stdout is not None
    assert victim.stdout.readline() == "holding\n"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()

    held = desk.maintenance.locks.held_by("victim")
    assert len(held) == 20
    assert desk.maintenance.locks.settle_dead("victim", [released(claim) for claim in held], NOW) == 20
    heir = start(desk, "heir", 20)
    go([heir])
    ran = dict(map(int, word.split(":")) for word in heir.communicate(timeout=60)[0].split())

    # The victim had settled 40; what it held comes with a later token, since a release raises it.
    assert len(ran) == 460
    assert {job_id for job_id, token in ran.items() if token > 1} == {claim.job_id for claim in held}
    assert {desk.status(job_id) for job_id in ids} == {Status.DONE}
