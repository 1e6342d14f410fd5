"""An idle queue with 4 workers: from the call that enqueues a job to the handler's first line, by `Queue.enqueue`
synced and not, and by an `INSERT`. The call is part of it: for a synced commit, so is the disk. Beside it bare
processes on a lean table. Then, in the same processes, CPU and memory (USS) while idle, those of Redis included. At
most two rounds.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from bench import processes, wake_floor
from bench.ours import ROOT, Site, pool
from bench.peers.base import Peer, Sample, environment
from bench.trial import Reading, Session, Trial

TITLE = "Latency of an idle queue, and what idling costs"
UNITS = {
    "latency": "ms",
    "latency, synced": "ms",
    "latency of an INSERT": "ms",
    "latency after the call": "ms",
    "wake-up floor": "ms",
    "idle CPU": "% of a core",
    "idle memory": "MB",
    "own memory": "MB",
}
ROUNDS = (1, 2)  # long ones
WORKERS = 4
FLOORS = {"1 hop": wake_floor.ONE, "2 hops": wake_floor.TWO}
_SETTLED = 1.0  # seconds after the last job until it is idle


def trials(session: Session) -> list[Trial]:
    ours = Trial("ours", str(WORKERS), partial(_ours, session))
    floors = [Trial("floor", case, partial(_floor, session, hops)) for case, hops in FLOORS.items()]
    peers = [Trial(peer.name, str(WORKERS), partial(_peer, session, peer)) for peer in session.peers]
    return [ours, *floors, *peers]


def _floor(session: Session, hops: int) -> Reading:
    """In processes of their own: this one has threads and files of the peers."""
    with session.scratch() as folder:
        command = [sys.executable, "-m", "bench.wake_floor", str(folder), str(hops), str(session.pick(150, 40))]
        told = processes.call(
            command, env=environment(folder) | {"PYTHONPATH": str(ROOT)}, log=folder / "floor.log", patience=60.0
        )
    return {"wake-up floor": json.loads(told)}


def _ours(session: Session) -> Reading:
    jobs = session.pick(150, 40)
    with session.scratch() as folder:
        site = Site(folder)
        with site.supervisor(pool("arrive", WORKERS)) as process:
            board = site.await_idle(WORKERS)
            normal, full, insert = (site.feed(jobs, commit) for commit in ("NORMAL", "FULL", "INSERT"))
            idling = _idle(session)
            own = [process.pid, int(board.supervisor_status()["maintainer"])]
            memory = sum(psutil.Process(pid).memory_full_info().uss for pid in own) / 1e6
    others = {"latency, synced": _waits(full)["latency"], "latency of an INSERT": _waits(insert)["latency"]}
    return {**_waits(normal), **others, "own memory": [memory], **idling}


def _peer(session: Session, peer: Peer) -> Reading:
    with session.scratch() as folder, peer.open(folder) as queue, queue.workers(WORKERS, "arrive"):
        return {**_waits(queue.feed(session.pick(20, 8))), **_idle(session)}


def _waits(samples: list[Sample]) -> Reading:
    """From before the call, and from its return: a poller does not mind how long the call takes."""
    return {
        "latency": [(begun - before) * 1000 for before, _, begun in samples],
        "latency after the call": [(begun - after) * 1000 for _, after, begun in samples],
    }


def _idle(session: Session) -> Reading:
    """CPU and memory of all the contestant's processes while nothing happens; for peers on Redis, its too."""
    time.sleep(_SETTLED)
    seconds = session.pick(10.0, 3.0)
    family = psutil.Process().children(recursive=True)
    before = {process.pid: _nanoseconds(process.pid) for process in family}
    time.sleep(seconds)
    used = sum(_nanoseconds(pid) - start for pid, start in before.items()) / 1e9
    memory = sum(process.memory_full_info().uss for process in family if process.is_running())
    return {"idle CPU": [used / seconds * 100], "idle memory": [memory / 1e6]}


def _nanoseconds(pid: int) -> int:
    """CPU time of a process and its threads; exact, where clock ticks would be too coarse."""
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0
