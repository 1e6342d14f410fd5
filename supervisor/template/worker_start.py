"""What a template and a worker are given, and how a worker begins: in the process that its template has forked, or, for
`start = "spawn"`, in a fresh interpreter.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO, cast

from supervisor.config import LogSettings, PoolSettings
from supervisor.store.base import Engine, WorkerRecord
from supervisor.system import child, counters, failpoints, kernel, run_log, settled_notice, signals, standard_streams
from supervisor.system.chunk_ring import ChunkWriter
from supervisor.system.outlet import Outlet, Ration
from supervisor.system.scoreboard import Scoreboard, chunks_of, counters_of, run_logs_of
from supervisor.system.slot import Slot
from supervisor.telemetry import configure, events
from supervisor.template.image import prepare
from supervisor.worker.handler import AnyHandler
from supervisor.worker.runners import recorder_for
from supervisor.worker.worker import Assignment, Worker

BYTES_A_SECOND = 2 << 20  # passed on, which is more than a program's output needs; the rest is dropped


class TemplateSpec(NamedTuple):
    """What a template and its workers need. `wakes` maps a pool to the eventfd of its idle workers, `threads` to
    the number of threads of a numerical library in each of them. `alone`: for one pool, whose templates have died.
    """

    supervisor: str
    folder: Path
    pools: Mapping[str, PoolSettings]
    threads: Mapping[str, int]
    wakes: Mapping[str, int]
    news: int
    log: LogSettings
    keep_done: bool
    alone: bool = False

    @property
    def any_pool(self) -> PoolSettings:
        """Pools of one template have the same value in every setting that matters to it."""
        return next(iter(self.pools.values()))


class WorkerSpec(NamedTuple):
    """What one worker is and should do. `log` is where its events go; stderr belongs to the handler.

    A `cautious` one claims one job at a time and commits after each: one of the jobs may ruin its process.
    An `unproven` one may have code of which no worker has been ready yet.
    """

    template: TemplateSpec
    pool: PoolSettings
    record: WorkerRecord
    engine: Engine
    device: str | None
    log: int
    cautious: bool = False
    unproven: bool = False


def record_of(supervisor: str, pool: PoolSettings, incarnation: str, name: str, slot: int) -> WorkerRecord:
    pid = os.getpid()
    started = kernel.start_ticks(pid)
    return WorkerRecord(incarnation, supervisor, pool.name, name, pid, slot, pool.policy.encode(), time.time(), started)


def work(spec: WorkerSpec, board: Scoreboard, handler: AnyHandler | None = None) -> int:
    """The worker's life in its own process. `handler` has already been set up, or is loaded here."""
    template, pool, record = spec.template, spec.pool, spec.record
    kernel.become_subreaper()
    show_title(f"job-supervisor: {record.name}")
    slot = board.slot(record.slot)
    standard_streams.make_safe()
    recorder = recorder_for(pool, cautious=spec.cautious)
    recorder.attach(
        run_log.shared(run_logs_of(board.path), record.slot), ChunkWriter(chunks_of(board.path), record.slot)
    )
    log = Outlet(spec.log)
    ration = Ration(log, BYTES_A_SECOND, partial(_tell_dropped, record.name))
    events_to = cast("TextIO", log)
    configure(template.log.format, template.log.level, events_to, keep=recorder.run_log.line, theirs=ration)
    if pool.command:
        from supervisor.worker.subprocess_handler import SubprocessHandler  # imported here: only programs need it

        handler = SubprocessHandler(
            pool, template.folder, leave=partial(_ask_to_leave, slot), lost=partial(_note_lost, slot), recorder=recorder
        )
    assignment = Assignment(
        pool,
        record,
        spec.engine,
        slot,
        wake=template.wakes[pool.name],
        news=template.news,
        gate=board.gate,
        recorder=recorder,
        row=counters.shared(counters_of(board.path), record.slot),
        device=spec.device,
        cautious=spec.cautious,
        unproven=spec.unproven,
        keep_done=template.keep_done,
        on_beat=ration.tell_dropped,
    )
    code = Worker(assignment, handler).run()
    ration.tell_rest()
    return code


def exec_worker(spec: WorkerSpec, board: Path) -> NoReturn:
    """Continue in a fresh interpreter; what it must know is passed in an anonymous file."""
    file = os.memfd_create("worker", 0)
    os.write(file, pickle.dumps((spec, board)))
    os.lseek(file, 0, os.SEEK_SET)
    for descriptor in (spec.template.wakes[spec.pool.name], spec.template.news, spec.log, file):
        os.set_inheritable(descriptor, True)
    start = f"from {__name__} import continue_worker; continue_worker()"
    arguments = [str(file), str(child.keep_lifeline_over_exec()), settled_notice.address().hex()]
    os.execv(sys.executable, [sys.executable, "-c", start, *arguments])  # noqa: S606


def continue_worker() -> NoReturn:
    """In the fresh interpreter. Its arguments: the descriptors of the start data, and of what tells the supervisor's
    end; and, in hexadecimal digits, where the admin process is told that jobs were settled.
    """
    with suppress(OSError):
        os.set_inheritable(int(sys.argv[2]), False)
    settled_notice.take_over(bytes.fromhex(sys.argv[3]))
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        # Written by our own parent into memory that no other process can reach.
        spec, path = pickle.load(file)  # noqa: S301
    board = Scoreboard.open(path, writable=True)
    if board is None:
        child.leave(1)
    prepare(spec.template.any_pool, spec.template.folder, board.path, spec.engine.url)
    failpoints.become("worker")
    child.leave(work(spec, board))


def _tell_dropped(worker: str, size: int) -> None:
    events(process="worker").warning("output_dropped", worker=worker, bytes=size, of="the log")


def _ask_to_leave(slot: Slot) -> None:
    slot.page.drain = 1
    os.kill(os.getpid(), signals.DRAIN)  # it may be asleep


def _note_lost(slot: Slot, why: str) -> None:
    """Its program has died, or had to be killed; the worker exits."""
    slot.page.lost = 1
    slot.tell(why)


def show_title(title: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(title)
