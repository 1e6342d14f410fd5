"""ONNX Runtime as a worker needs it: one thread, errors only, and no telemetry."""

from __future__ import annotations

import os
from typing import Any

from handlers.extras import require


def runtime(extra: str = "ml") -> Any:
    """The `onnxruntime` module, imported with its telemetry disabled.

    Recent builds start an uploader, with its own thread and database, as soon as they are imported, unless this
    variable is set before. To enable it, set the variable to 0 in the pool's `env`. Libraries that import
    onnxruntime themselves must be imported after this.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return require("onnxruntime", extra=extra)


def session(model: bytes | str, extra: str = "ml") -> Any:
    """An inference session for a serialised model or the path of one, on the CPU."""
    library = runtime(extra)
    settings = library.SessionOptions()
    # One thread: a session with more does not survive a fork, and pools scale by processes.
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3  # errors only
    return library.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
