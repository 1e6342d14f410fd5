"""A worker with `start = "spawn"`: the process that its template has forked continues in a fresh interpreter."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from supervisor.system import child, failpoints, settled_notice
from supervisor.system.scoreboard import Scoreboard
from supervisor.template.image import prepare
from supervisor.template.worker_start import WorkerSpec, work


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
