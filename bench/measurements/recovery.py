"""From the KILL of a worker in its handler to the first line of the job's next run."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

from bench.ours import Site, pool
from bench.probe.tally import Arrivals
from bench.trial import AS_SAID, Reading, Session, Trial
from supervisor import Queue

TITLE = "A worker is killed: how soon its job runs again"
UNITS = {"rerun": "ms"}
ROUNDS = AS_SAID
WORKERS = 2
_PATIENCE = 20.0
_PAUSE = (0.02, 0.06)  # seconds that a job has been running when its worker is killed


def trials(session: Session) -> list[Trial]:
    return [Trial("ours", str(WORKERS), partial(_measure, session, session.pick(60, 30)))]


def _measure(session: Session, kills: int) -> Reading:
    with session.scratch() as folder:
        site = Site(folder)
        arrivals = Arrivals(folder / "arrivals")
        with Queue(site.url) as queue, site.supervisor(pool("once", WORKERS)):
            waits = []
            for number in range(kills):
                site.await_idle(WORKERS)
                waits.append(_kill_one(queue, arrivals, number))
        arrivals.close()
    return {"rerun": waits}


def _kill_one(queue: Queue, arrivals: Arrivals, number: int) -> float:
    """Milliseconds from the kill to the next run."""
    job = queue.enqueue("once", {"number": number})
    running = arrivals.next(_PATIENCE)
    time.sleep(random.uniform(*_PAUSE))
    killed = time.monotonic()
    os.kill(running.pid, signal.SIGKILL)
    again = arrivals.next(_PATIENCE)
    assert running.number == again.number == number, (running, again)
    queue.wait(job, timeout=_PATIENCE)
    return (again.at - killed) * 1000
