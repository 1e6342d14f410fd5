"""The template: a warm, single-threaded image that has imported the handler and forks workers from it.

It is the parent of its workers: it reaps them, reports to the supervisor how they ended, and kills the processes that
a dead worker's handlers have left behind. When the supervisor's end of the channel closes, it kills all its
descendants before it exits.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from contextlib import ExitStack

from supervisor.domain.text import shortened
from supervisor.store.base import Engine
from supervisor.system import child, descriptors, ending, kernel, signals, standard_streams
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State
from supervisor.telemetry import events
from supervisor.template.image import load_image, prepare
from supervisor.template.worker_start import TemplateSpec, WorkerSpec, exec_worker, record_of, show_title, work
from supervisor.worker.environment import Place, take
from supervisor.worker.handler import AnyHandler, HandlerError
from supervisor.worker.runners import runner_of

EXIT_BROKEN = 70
SIGNALS = {
    "obeyed": (signal.SIGCHLD, signal.SIGCONT),
    "ignored": (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
}
_LOOK_AGAIN = 1.0  # seconds
STDERR_PIPE_BYTES = 1 << 20  # so that workers can continue to write for a while if the supervisor is stopped


class Template:
    """Created in its own process, right after the fork."""

    def __init__(self, spec: TemplateSpec, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._spec = spec
        self._engine = engine
        self._channel = channel
        self._board = board
        self._workers: dict[int, str] = {}
        self._handler: AnyHandler | None = None  # set up before the fork
        self._files: dict[int, tuple[int, int] | None] = {}  # what the handler's code has left open, with its identity
        self._unswept: list[str] = []  # dead workers that may have left processes behind which still exist
        self._log = events(process="template", handler=spec.any_pool.handler or None)

    def run(self) -> int:
        """Load, report readiness, then fork on request until the supervisor is gone or closes the channel."""
        parent = os.getppid()
        kernel.become_subreaper()
        signals.Inbox(**SIGNALS)
        signals.unblock_all()
        prepare(self._spec.any_pool, self._spec.folder, self._board.path, self._engine.url)
        # Set here, so that not every worker has to import the module for it.
        show_title(f"job-supervisor: template of {', '.join(self._spec.pools)}")
        ours = kernel.open_descriptors()
        try:
            self._handler = load_image(self._spec.any_pool, self._engine.database.file, self._log.warning)
            for pool in self._spec.pools.values():
                runner_of(pool)  # imported once for all of its workers
            standard_streams.make_safe()  # what was imported may have closed or removed them
        except (HandlerError, OSError) as error:
            self._channel.send({"broken": shortened(str(error))})
            return EXIT_BROKEN
        self._files = {number: kernel.file_of(number) for number in kernel.open_descriptors() - ours}
        # From here on descendants must be ended before this process, so it must outlive the supervisor.
        kernel.outlive_parent()
        gc.collect()
        kernel.trim_heap()  # memory freed after loading a model would be copied into every worker's page tables
        gc.freeze()
        self._channel.send({"ready": True})
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
        with ExitStack() as opened:
            try:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                opened.callback(os.close, writer)
                unused = opened.enter_context(ExitStack())
                unused.callback(os.close, reader)
                kernel.enlarge_pipe(writer, STDERR_PIPE_BYTES)
                pid, pidfd = child.fork(
                    lambda: self._become_worker(request, writer, files),
                    role="worker",
                    keep=(self._spec.wakes[request["pool"]], self._spec.news, writer, *files),
                )
            except Exception as error:
                # Whatever a module has done to our process when imported: report it to the pool.
                strerror = error.strerror if isinstance(error, OSError) else ""
                why = strerror or shortened(f"{type(error).__name__}: {error}")
                self._channel.send({"unforked": incarnation, "error": why})
            else:
                unused.pop_all()
                self._workers[pid] = incarnation
                self._channel.send({"forked": incarnation, "pid": pid}, (pidfd, reader))

    def _end(self, incarnation: str) -> None:
        """Kill a worker if the supervisor could not receive its descriptors."""
        for pid, worker in self._workers.items():
            if worker == incarnation:
                ending.signal_child(pid, signal.SIGKILL)  # our own unreaped child

    def _become_worker(self, request: Message, stderr: int, files: set[int]) -> int:
        descriptors.disown(files)
        pool, slot, device = self._spec.pools[request["pool"]], request["slot"], request["device"]
        record = record_of(self._spec.supervisor, pool, request["incarnation"], request["name"], slot)
        log = os.dup(2)
        # Both go through the supervisor, which always reads, within limits: jobs that print must not depend on
        # whether the supervisor's own stdout is read.
        for number in (standard_streams.STDOUT, standard_streams.STDERR):
            os.dup2(stderr, number)
        os.close(stderr)
        try:
            take(pool, Place(self._spec.threads[pool.name], device))
        except HandlerError as error:
            self._board.slot(slot).tell(str(error))
            self._board.slot(slot).state(State.BROKEN)
            return EXIT_BROKEN
        spec = WorkerSpec(
            self._spec, pool, record, self._engine, device, log, bool(request["cautious"]), bool(request["unproven"])
        )
        if pool.start == "spawn":
            exec_worker(spec, self._board.path)
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
