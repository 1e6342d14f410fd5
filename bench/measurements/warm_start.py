"""A worker whose handler imports onnxruntime: from the supervisor's request for it until it is ready, forked from the
warm template or started as a fresh interpreter. Beside it a bare fork of such an image.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

from bench import models, processes, waiting
from bench.ours import Site, slots
from bench.probe.tally import Arrivals
from bench.trial import AS_SAID, Reading, Session, Trial
from supervisor import Queue
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot, State

TITLE = "A worker whose handler imports onnxruntime: from the wish for it to its being ready"
UNITS = {"ready": "ms"}
ROUNDS = AS_SAID
FORK, SPAWN, BARE = "fork", "spawn", "bare fork"
_PATIENCE = 30.0
_LOOK = 0.0002  # seconds between two looks at the scoreboard
_TRIES = 3  # for each start that is to be seen
HANDLER = """
import onnxruntime
import tally

def warm(payload, ctx):
    tally.arrive(payload["number"])
"""
BARE_FORKS = """
import gc, os, sys, time
import onnxruntime
gc.collect()
gc.freeze()
for _ in range(int(sys.argv[1])):
    reader, writer = os.pipe()
    before = time.monotonic()
    if (child := os.fork()) == 0:
        os.write(writer, repr(time.monotonic()).encode())
        os._exit(0)
    print((float(os.read(reader, 100)) - before) * 1000)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
"""


def trials(session: Session) -> list[Trial]:
    return [
        Trial("ours", FORK, partial(_measure, session, FORK, session.pick(20, 10))),
        Trial("ours", SPAWN, partial(_measure, session, SPAWN, session.pick(4, 2))),
        Trial("floor", BARE, partial(_bare, session, 30)),
    ]


def _measure(session: Session, start: str, times: int) -> Reading:
    models.require("onnxruntime")
    with session.scratch() as folder:
        site = Site(folder)
        (folder / "warm.py").write_text(HANDLER)
        arrivals = Arrivals(folder / "arrivals")
        pool = f'[pools.warm]\nhandler = "warm:warm"\nworkers = 1\nstart = "{start}"\n'
        with Queue(site.url) as queue, site.supervisor(pool):
            board = site.await_idle(1)
            waits: list[float] = []
            for number in range(times * _TRIES):
                # It has to finish a job: workers that die without are replaced ever more slowly.
                queue.enqueue("warm", {"number": number})
                arrivals.next(_PATIENCE)
                site.await_idle(1)
                waits += _replacement(board)
                if len(waits) == times:
                    break
        arrivals.close()
    if not waits:
        raise waiting.NotInTime("the machine is too busy to see a worker start")
    return {"ready": waits}


def _replacement(board: Scoreboard) -> list[float]:
    """Kill the idle worker; milliseconds from its successor's place in the scoreboard to its being ready.

    None where we were not there in time to see the place empty, whose first beat is the supervisor's wish.
    """
    time.sleep(0.05)
    [old] = [slot for slot in slots(board) if slot.state is State.IDLE]
    os.kill(old.pid, signal.SIGKILL)

    def successor(*states: State) -> Snapshot | None:
        new = (slot for slot in slots(board) if slot.incarnation != old.incarnation and slot.state in states)
        return next(new, None)

    asked = waiting.until(
        lambda: successor(State.STARTING, State.IDLE), "a worker in place of a dead one", _PATIENCE, _LOOK
    )
    waiting.until(lambda: successor(State.IDLE), "a new worker that is ready", _PATIENCE, _LOOK)
    return [] if asked.pid else [(time.monotonic() - asked.beat) * 1000]


def _bare(session: Session, times: int) -> Reading:
    models.require("onnxruntime")
    with session.scratch() as folder:
        command = [sys.executable, "-c", BARE_FORKS, str(times)]
        told = processes.call(command, env=os.environ, log=folder / "bare.log", patience=_PATIENCE)
    return {"ready": [float(line) for line in told.split()]}
