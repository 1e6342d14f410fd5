"""What the context of a run does in a worker."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from supervisor.domain.errors import ContextClosed
from supervisor.store.base import Engine
from supervisor.system.chunk_ring import Emitter
from supervisor.system.mappings import Mark
from supervisor.system.slot import Cancel, Slot
from supervisor.worker.recorder import Recorder


class SlotBoard:
    """A handler's progress and queries, answered from the worker's slot; its log lines and chunks, kept for the job.

    `reported` is called after each report of progress.
    """

    def __init__(self, slot: Slot, recorder: Recorder, mark: Mark, engine: Engine) -> None:
        self.reported: Callable[[], None] = lambda: None
        self._slot = slot
        self._engine = engine
        self._epoch = ""  # needed by few handlers, and constant for the worker's whole life
        self._run_log = recorder.run_log
        self._chunks = recorder.chunks
        self._mark = mark

    def check(self, what: str) -> None:
        if not self._mark[0]:
            raise ContextClosed(f"ctx.{what}: the context belongs to the worker, and this process is a fork of it")

    def keep(self, line: str) -> None:
        if self._mark[0]:
            self._run_log.line(line)

    def emit(self, run: Emitter, data: bytes) -> None:
        if self._mark[0] and self._chunks is not None and not self.cancelled(run.job_id, run.token):
            self._chunks.add(run, data)

    def progress(self, fraction: float, text: str) -> None:
        if self._mark[0]:
            self._slot.work.progress(fraction, text)
            self.reported()

    def extend(self, seconds: float) -> None:
        self.check("extend")
        self._slot.work.extend(monotonic() + seconds)

    def cancelled(self, job: int, token: int) -> bool:
        self.check("cancelled")
        return self._slot.requests.cancel_requested(job, token) is not Cancel.NONE

    def epoch(self) -> str:
        self.check("idempotency_key")
        self._epoch = self._epoch or self._engine.database.epoch()
        return self._epoch

    def meta(self, job: int) -> Any:
        self.check("meta")
        return self._engine.meta(job)
