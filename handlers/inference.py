"""ONNX Runtime as a worker needs it: one thread, errors only, and nothing sent anywhere."""

from __future__ import annotations

import os
from typing import Any

from handlers.extras import require


def runtime() -> Any:
    """The `onnxruntime` module, imported with its telemetry off.

    The builds of recent versions start an uploader, with a thread and a database of its own, as soon as
    they are imported, unless this variable is set before. Whoever wants that sets it to 0 in the pool's
    `env`. Libraries that import onnxruntime themselves must be imported after this.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return require("onnxruntime", extra="ml")


def session(model: bytes) -> Any:
    """An inference session for a serialised model, on the CPU."""
    library = runtime()
    settings = library.SessionOptions()
    # One thread: a session with more does not survive a fork, and pools scale by processes.
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3  # errors only
    return library.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
