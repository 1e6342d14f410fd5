"""The environment of a program run by a worker: small, and without the supervisor's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from supervisor.config.settings import VISIBLE_DEVICES
from supervisor.system import ending

# One thread each, unless the pool says otherwise: a fork copies only the thread that calls it, and
# libraries that had other threads hang or crash in the child. ONNX Runtime's telemetry uses such a thread, too.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SINGLE_THREADED = {**dict.fromkeys(THREADS, "1"), "ORT_DISABLE_TELEMETRY": "1"}
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", ending.SCOREBOARD_VARIABLE)
REPLY_FD = "SUPERVISOR_REPLY_FD"
REPLIES = 3  # fixed: a plain sh can only use single digits

HELPER = Path(__file__).parent.parent / "helper"
"""A folder that contains only job_handler.py, so that it can be on any interpreter's path."""


def of_program(env: Mapping[str, str], device: str | None = None) -> dict[str, str]:
    """The whole environment of a program of a pool with this `env`, run by a worker with this `device`.

    It contains no secret from the supervisor's own environment, and not the database's address. The thread
    settings are the worker's.
    """
    found = {**SINGLE_THREADED, **os.environ}
    own = {name: found[name] for name in (*INHERITED, *SINGLE_THREADED) if name in found} | dict(env)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [own.get("PYTHONPATH"), str(HELPER)]))
    own[REPLY_FD] = str(REPLIES)
    if device is not None:
        own[VISIBLE_DEVICES] = device
    return own
