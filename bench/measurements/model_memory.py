"""Four workers with three models each, and their template. The models are loaded before the fork (`preload_setup`)
or after it: the memory of the pool, in which shared pages are counted once (PSS), and the time from the KILL of a
worker until its replacement is ready. The same of bare forks, without a supervisor: what the kernel takes to end such
a process and to fork another.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

import psutil

from bench import models, processes, waiting
from bench.ours import Site, idle, slots
from bench.trial import AS_SAID, Reading, Session, Trial
from supervisor import Queue
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State

TITLE = "Four workers with three models: their memory, and how soon a killed one is replaced"
UNITS = {"model memory": "MB", "worker memory": "MB", "replaced": "ms"}
ROUNDS = AS_SAID
WORKERS = 4
TYPES = ("tag", "caption", "nsfw")
BEFORE, AFTER, BARE = "before the fork", "after the fork", "bare fork"
_PATIENCE = 60.0
_SETTLED = 0.05  # seconds after the last job
_LOOK = 0.0002  # seconds between two looks at the scoreboard
POOL = """
[pools.pictures]
handler = "handlers.pictures:Pictures"
types = ["tag", "caption", "nsfw"]
workers = {workers}
preload_setup = {before}
options = {{ caption = {{ method = "template" }} }}
"""
BARE_FORKS = """
import ctypes, gc, os, signal, sys, time, types
from handlers.pictures import Pictures

kills, workers, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
pictures = Pictures()
pictures.setup(types.SimpleNamespace(options={"caption": {"method": "template"}}))
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
gc.freeze()

def fork():
    done, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, b"forked")
        for type in ("tag", "caption", "nsfw"):
            for path in paths:
                pictures.handle({"path": path}, types.SimpleNamespace(type=type))
        os.write(told, b"worked")
        signal.pause()
    os.read(done, 6)
    at = time.monotonic()
    os.read(done, 6)
    return pid, at

children = [fork()[0] for _ in range(workers)]
for _ in range(kills):
    victim = children.pop(0)
    time.sleep(0.05)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    pid, at = fork()
    print((at - killed) * 1000)
    children.append(pid)
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""


def trials(session: Session) -> list[Trial]:
    return [
        Trial("ours", BEFORE, partial(_measure, session, BEFORE, session.pick(20, 4))),
        Trial("ours", AFTER, partial(_measure, session, AFTER, session.pick(3, 1))),
        Trial("floor", BARE, partial(_bare, session, session.pick(20, 4))),
    ]


def _measure(session: Session, when: str, kills: int) -> Reading:
    payloads = [{"path": path} for path in session.pick(models.pictures(), models.pictures()[:1])]
    with session.scratch() as folder:
        site = Site(folder)
        site.env |= models.environment(session.folder)
        pool = POOL.format(workers=WORKERS, before=str(when == BEFORE).lower())
        with Queue(site.url) as queue, site.supervisor(pool):
            board = site.await_idle(WORKERS)
            _work(queue, board, payloads)
            memory = _memory(board)
            waits = []
            for _ in range(kills):
                waits.append(_kill_one(board))
                # They have to finish jobs: workers that die without are replaced ever more slowly.
                _work(queue, board, payloads)
    return {**memory, "replaced": waits}


def _bare(session: Session, kills: int) -> Reading:
    with session.scratch() as folder:
        env = Site(folder).env | models.environment(session.folder)
        command = [sys.executable, "-c", BARE_FORKS, str(kills), str(WORKERS), *models.pictures()]
        told = processes.call(command, env=env, log=folder / "bare.log", patience=_PATIENCE)
    return {"replaced": [float(line) for line in told.split()]}


def _work(queue: Queue, board: Scoreboard, payloads: list[dict[str, str]]) -> None:
    """Jobs of every type, until each worker has finished some and is idle again."""
    while True:
        ids = [job for _ in range(WORKERS) for type in TYPES for job in queue.enqueue_many(type, payloads)]
        for job in ids:
            if queue.wait(job, timeout=_PATIENCE).status != "done":
                raise processes.ProgramFailed(f"a job was not done: {queue.job(job).last_error}")
        waiting.until(lambda: len(idle(board)) == WORKERS, "all workers idle again", _PATIENCE)
        if all(slot.done for slot in slots(board) if slot.state is State.IDLE):
            break


def _memory(board: Scoreboard) -> Reading:
    """PSS, in which a page that several share is counted for each with its part."""
    workers = [psutil.Process(pid) for pid in idle(board)]
    alone = sum(process.memory_full_info().pss for process in workers) / 1e6
    template = psutil.Process(workers[0].ppid()).memory_full_info().pss / 1e6
    return {"worker memory": [alone], "model memory": [alone + template]}


def _kill_one(board: Scoreboard) -> float:
    """Milliseconds from the kill until there are as many idle workers as before, without that one."""
    victim = idle(board)[0]
    time.sleep(_SETTLED)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)

    def replaced() -> bool:
        ready = idle(board)
        return len(ready) == WORKERS and victim not in ready

    waiting.until(replaced, "a worker in place of a dead one", _PATIENCE, _LOOK)
    return (time.monotonic() - killed) * 1000
