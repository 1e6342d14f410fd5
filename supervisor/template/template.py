"""The template: a warm, single-threaded image that has imported the handler and forks workers from it.

It is the parent of its workers: it reaps them, reports to the supervisor how they ended, and kills the processes that
a dead worker's handlers have left behind. When the supervisor's end of the channel closes, it kills all its
descendants before it exits.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO, cast

from supervisor.config.settings import LogSettings, PoolSettings
from supervisor.domain.text import shortened
from supervisor.store.base import Engine, WorkerRecord
from supervisor.system import (
    belonging,
    child,
    counters,
    ending,
    kernel,
    lifeline,
    released,
    run_log,
    settled_notice,
    signals,
    standard,
)
from supervisor.system.channel import Channel, Message
from supervisor.system.chunk_ring import ChunkWriter
from supervisor.system.outlet import Outlet, Ration
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Slot
from supervisor.telemetry import configure, events
from supervisor.template.fork_safety import load_image
from supervisor.template.lookup import lacking
from supervisor.worker.loader import AnyHandler, HandlerError, search_first
from supervisor.worker.parts import Assignment
from supervisor.worker.placement import Place, limit_threads, take
from supervisor.worker.runners import recorder_for
from supervisor.worker.worker import Worker

BYTES_A_SECOND = 2 << 20  # passed on, which is more than a program's output needs; the rest is dropped
EXIT_BROKEN = 70
SIGNALS = {
    "obeyed": (signal.SIGCHLD, signal.SIGCONT),
    "ignored": (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
}
_LOOK_AGAIN = 1.0  # seconds
STDERR_PIPE_BYTES = 1 << 20  # so that workers can continue to write for a while if the supervisor is stopped


class TemplateSpec(NamedTuple):
    """What a template and its workers need. `wakes` maps a pool to the eventfd of its idle workers, `threads` to
    the number of threads of a numerical library in each of them.
    """

    supervisor: str
    folder: Path
    pools: Mapping[str, PoolSettings]
    threads: Mapping[str, int]
    wakes: Mapping[str, int]
    news: int
    log: LogSettings
    keep_done: bool

    @property
    def any_pool(self) -> PoolSettings:
        """Pools of one template have the same value in every setting that matters to it."""
        return next(iter(self.pools.values()))


class Template:
    """Created in its own process, right after the fork."""

    def __init__(self, spec: TemplateSpec, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._spec = spec
        self._engine = engine
        self._channel = channel
        self._board = board
        self._workers: dict[int, str] = {}
        self._handler: AnyHandler | None = None  # set up before the fork
        self._lacking: dict[str, str] = {}  # pools whose handler is not there, and why
        self._files: dict[int, tuple[int, int] | None] = {}  # what the handler's code has left open, with its identity
        self._unswept: list[str] = []  # dead workers that may have left processes behind which still exist
        self._log = events(process="template", handler=spec.any_pool.handler or None)

    def run(self) -> int:
        """Load, report readiness, then fork on request until the supervisor is gone or closes the channel."""
        parent = os.getppid()
        kernel.become_subreaper()
        signals.Inbox(**SIGNALS)
        signals.unblock_all()
        prepare(self._spec, self._board, self._engine.url)
        # Set here, so that not every worker has to import the module for it.
        _title(f"job-supervisor: template of {', '.join(self._spec.pools)}")
        ours = kernel.open_descriptors()
        try:
            self._handler = load_image(self._spec.any_pool, self._engine.database.file, self._log.warning)
            self._lacking = lacking(self._spec.pools)
            standard.make_safe(keep_open=True)  # what was imported may have closed or removed them
        except (HandlerError, OSError) as error:
            self._channel.send({"broken": shortened(str(error))})
            return EXIT_BROKEN
        self._files = {number: kernel.file_of(number) for number in kernel.open_descriptors() - ours}
        # From here on descendants must be ended before this process, so it must outlive the supervisor.
        kernel.outlive_parent()
        gc.collect()
        kernel.trim_heap()  # memory freed after loading a model would be copied into every worker's page tables
        gc.freeze()
        self._channel.send({"ready": True, "lacking": self._lacking})
        self._serve(signals.Inbox(**SIGNALS), parent)  # again: what was loaded may have set its own handlers
        ending.kill_children()
        return 0

    def _serve(self, inbox: signals.Inbox, parent: int) -> None:
        """Until the channel or the supervisor ends: a child that it has just forked may hold its end open."""
        poll = select.epoll()
        poll.register(self._channel.fileno(), select.EPOLLIN)
        poll.register(inbox.fileno(), select.EPOLLIN)
        while not self._channel.closed and os.getppid() == parent:
            poll.poll(_LOOK_AGAIN if self._unswept else None)
            if inbox.take() or self._unswept:
                self._reap()
            for message, _ in self._channel.receive():
                if "fork" in message:
                    self._fork(message["fork"])
                elif "end" in message:
                    self._end(message["end"])
            self._channel.flush()

    def _fork(self, request: Message) -> None:
        """Fork one worker, and pass its pidfd and the end of its stderr to the supervisor."""
        incarnation = request["incarnation"]
        # Files that the handler's modules have opened stay open: on numbers that are free again a worker would open its
        # own, and the modules would write into them, among them the database.
        files = {number for number, file in self._files.items() if kernel.file_of(number) == file}
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC)
        except Exception as error:
            self._channel.send({"unforked": incarnation, "error": _reason(error)})
            return
        kernel.enlarge_pipe(writer, STDERR_PIPE_BYTES)
        try:
            pid, pidfd = child.fork(
                lambda: self._become_worker(request, writer, files),
                role="worker",
                keep=(self._spec.wakes[request["pool"]], self._spec.news, writer, *files),
            )
        except Exception as error:
            # Whatever a module has done to our process when imported: report it to the pool.
            self._channel.send({"unforked": incarnation, "error": _reason(error)})
            os.close(reader)
        else:
            self._workers[pid] = incarnation
            self._channel.send({"forked": incarnation, "pid": pid}, (pidfd, reader))
        finally:
            os.close(writer)

    def _end(self, incarnation: str) -> None:
        """Kill a worker if the supervisor could not receive its descriptors."""
        for pid, worker in self._workers.items():
            if worker == incarnation:
                ending.signal_child(pid, signal.SIGKILL)  # our own unreaped child

    def _become_worker(self, request: Message, stderr: int, files: set[int]) -> int:
        released.numbers.update(files)
        pool, slot, device = self._spec.pools[request["pool"]], request["slot"], request["device"]
        record = record_of(self._spec.supervisor, pool, request["incarnation"], request["name"], slot)
        log = os.dup(2)
        # Both go through the supervisor, which always reads, within limits: jobs that print must not depend on
        # whether the supervisor's own stdout is read.
        for number in (standard.STDOUT, standard.STDERR):
            os.dup2(stderr, number)
        os.close(stderr)
        try:
            take(pool, Place(self._spec.threads[pool.name], device))
        except HandlerError as error:
            self._board.slot(slot).give_up(str(error))
            return EXIT_BROKEN
        spec = WorkerSpec(
            self._spec, pool, record, self._engine, device, log, bool(request["cautious"]), bool(request["unproven"])
        )
        if pool.start == "spawn":
            _exec_worker(spec, self._board.path)
        return work(spec, self._board, self._handler)

    def _reap(self) -> None:
        for pid, status, peak_memory in child.reap():
            incarnation = self._workers.pop(pid, None)
            if incarnation is not None:
                self._unswept.append(incarnation)
                self._channel.send({"exited": incarnation, "status": status, "peak_memory": peak_memory})
        # What the dead worker's handlers had started are now our children. If they cannot be listed, try again.
        if self._unswept and ending.kill_children(spare=frozenset(self._workers)) is not None:
            self._channel.send({"swept": self._unswept})
            self._unswept = []


def prepare(spec: TemplateSpec, board: Scoreboard, url: str) -> None:
    """Set the pool's environment, with the database's URL, and its folders first on sys.path."""
    belonging.mark(board.path)
    pool = spec.any_pool
    if pool.preloads:
        limit_threads(pool, pool.threads or 1)
    os.environ["SUPERVISOR_DATABASE"] = url
    os.environ.update(pool.env)
    search_first(pool.path, spec.folder)


def record_of(supervisor: str, pool: PoolSettings, incarnation: str, name: str, slot: int) -> WorkerRecord:
    import time

    pid = os.getpid()
    started = kernel.start_ticks(pid)
    return WorkerRecord(incarnation, supervisor, pool.name, name, pid, slot, pool.policy.encode(), time.time(), started)


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


def work(spec: WorkerSpec, board: Scoreboard, handler: AnyHandler | None = None) -> int:
    """The worker's life in its own process. `handler` has already been set up, or is loaded here."""
    template, pool, record = spec.template, spec.pool, spec.record
    kernel.become_subreaper()
    _title(f"job-supervisor: {record.name}")
    slot = board.slot(record.slot)
    standard.make_safe(keep_open=True)
    recorder = recorder_for(pool, cautious=spec.cautious)
    recorder.attach(run_log.shared(board.run_logs, record.slot), ChunkWriter(board.chunks, record.slot))
    log = Outlet(spec.log)
    ration = Ration(log, BYTES_A_SECOND, partial(_tell_dropped, record.name))
    events_to = cast("TextIO", log)
    configure(template.log.format, template.log.level, events_to, keep=recorder.run_log.line, theirs=ration)
    if pool.command:
        from supervisor.worker.subprocess_handler import SubprocessHandler  # imported here: only programs need it

        handler = SubprocessHandler(
            pool, template.folder, leave=partial(_ask_to_leave, slot), lost=slot.lose, recorder=recorder
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
        row=counters.shared(board.counters, record.slot),
        device=spec.device,
        cautious=spec.cautious,
        unproven=spec.unproven,
        keep_done=template.keep_done,
        on_beat=ration.tell_dropped,
    )
    code = Worker(assignment, handler).run()
    ration.tell_rest()
    return code


def _tell_dropped(worker: str, size: int) -> None:
    events(process="worker").warning("output_dropped", worker=worker, bytes=size, of="the log")


def _ask_to_leave(slot: Slot) -> None:
    slot.requests.drain()
    os.kill(os.getpid(), signals.DRAIN)  # it may be asleep


def _exec_worker(spec: WorkerSpec, board: Path) -> NoReturn:
    """Continue in a fresh interpreter; what it must know is passed in an anonymous file."""
    file = os.memfd_create("worker", 0)
    os.write(file, pickle.dumps((spec, board)))
    os.lseek(file, 0, os.SEEK_SET)
    for descriptor in (spec.template.wakes[spec.pool.name], spec.template.news, spec.log, file):
        os.set_inheritable(descriptor, True)
    told = [str(file), str(lifeline.keep_over_exec()), settled_notice.address().hex()]
    os.execv(sys.executable, [sys.executable, "-m", "supervisor.template.spawned", *told])  # noqa: S606


def _reason(error: Exception) -> str:
    """Why no worker can be forked, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shortened(f"{type(error).__name__}: {error}")


def _title(title: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(title)
