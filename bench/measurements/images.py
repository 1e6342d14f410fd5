"""Pictures a second of the shipped nsfw classifier: jobs of the queue for one worker and for two, beside a bare loop
over the same handler and pictures in one process and in two. The difference is what the queue
costs.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path

from bench import models, processes, waiting
from bench.ours import Site
from bench.probe import tally
from bench.trial import AS_SAID, Reading, Session, Trial
from supervisor import Queue

TITLE = "Pictures a second: nsfw scores through the queue, and by a bare loop"
UNITS = {"images": "pictures/s"}
ROUNDS = AS_SAID
WORKERS = (1, 2)
_PATIENCE = 120.0
_LOOK = 0.05  # seconds between two looks at the counts, which take time from the contestants
HANDLER = """
import tally
from handlers.nsfw import NsfwClassifier

class Classify(NsfwClassifier):
    def handle(self, payload, ctx):
        tally.mark()
        return super().handle(payload, ctx)
"""
# As many processes as it is told; each takes the next picture, as workers do, once all have their model.
BARE_LOOPS = """
import multiprocessing, sys, types
from classify import Classify

processes, jobs, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
fork = multiprocessing.get_context("fork")
ready, taken = fork.Barrier(processes), fork.Value("q", 0)

def loop():
    handler = Classify()
    handler.setup(types.SimpleNamespace(options={}))
    ready.wait()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= jobs:
            break
        handler.handle({"path": paths[number % len(paths)]}, None)

started = [fork.Process(target=loop) for _ in range(processes)]
for process in started:
    process.start()
for process in started:
    process.join()
sys.exit(any(process.exitcode for process in started))
"""


def trials(session: Session) -> list[Trial]:
    jobs = session.pick(200, 60)  # some six seconds, and two
    return [
        Trial(contestant, str(workers), partial(measure, session, workers, jobs * workers))
        for workers in WORKERS
        for contestant, measure in (("floor", _bare), ("ours", _queued))
    ]


def _queued(session: Session, workers: int, jobs: int) -> Reading:
    """From the first picture begun to the last; the workers have their models before there is any."""
    payloads = [{"path": path} for path in itertools.islice(itertools.cycle(models.pictures()), jobs)]
    with session.scratch() as folder:
        site = _site(folder)
        pool = f'[pools.classify]\nhandler = "classify:Classify"\nworkers = {workers}\n'
        with Queue(site.url) as queue, site.supervisor(pool):
            site.await_idle(workers)
            queue.enqueue_many("classify", payloads)
            waiting.until(lambda: tally.read(folder).jobs == jobs, f"{jobs} pictures", _PATIENCE, _LOOK)
        return _rate(folder, workers, jobs)


def _bare(session: Session, workers: int, jobs: int) -> Reading:
    with session.scratch() as folder:
        command = [sys.executable, "-c", BARE_LOOPS, str(workers), str(jobs), *models.pictures()]
        processes.call(command, env=_site(folder).env, log=folder / "bare.log", patience=_PATIENCE)
        return _rate(folder, workers, jobs)


def _site(folder: Path) -> Site:
    site = Site(folder)
    site.env |= models.environment(folder)
    (folder / "classify.py").write_text(HANDLER)
    return site


def _rate(folder: Path, workers: int, jobs: int) -> Reading:
    count = tally.read(folder)
    if (count.jobs, count.processes) != (jobs, workers):
        raise processes.ProgramFailed(f"{count.jobs} of {jobs} pictures by {count.processes} of {workers} processes")
    return {"images": [count.rate]}
