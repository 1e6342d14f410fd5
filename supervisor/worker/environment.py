"""What a program beside a worker finds in its environment: little, and nothing of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# One thread each, unless the pool says otherwise: a fork copies only the thread that calls it, and
# libraries that had others hang or crash in the child. ONNX Runtime's telemetry is such a thread, too.
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
REPLY_FD = "SUPERVISOR_REPLY_FD"
REPLIES = 3  # always: a plain sh can name single digits only

HELPER = Path(__file__).parent.parent / "helper"
"""A folder that holds job_handler.py and nothing else, so that it can stand on any interpreter's path."""


def of_program(env: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a program of a pool with this `env`.

    A secret in the supervisor's own environment, or the database's address, is not among it.
    """
    found = {**SINGLE_THREADED, **os.environ}
    own = {name: found[name] for name in (*INHERITED, *SINGLE_THREADED) if name in found} | dict(env)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [own.get("PYTHONPATH"), str(HELPER)]))
    own[REPLY_FD] = str(REPLIES)
    return own
