"""One sentence about a picture: from a captioning model of your choice, or from a template and its tags.

    [pools.caption]
    handler = "handlers.caption:Captioner"
    options = { method = "model", model = "/srv/models/blip" }   # a directory, or a name on the hub

    options = { method = "template" }                            # no model: a sentence made of tags

The result says which one was used. Neither ever replaces the other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from handlers import extras, picture, tag
from handlers.extras import require
from handlers.options import CaptionOptions, OptionsError, TagOptions, checked_by, folder, read
from handlers.tag import Tagger

if TYPE_CHECKING:
    from PIL.Image import Image

    from supervisor import Context


class Method(Protocol):
    """A way to create a caption: the fields of the job's result for an RGB picture."""

    def describe(self, image: Image) -> dict[str, Any]: ...


def needs(options: CaptionOptions) -> None:
    """Raises MissingExtraError without the libraries, and ValueError without a model, or if its folder has none."""
    if options.method == "template":
        tag.needs(options)
        return
    if not options.model:
        raise ValueError(
            'the caption handler has no model: set options = { model = "…" } to a directory or a name on '
            'the hub, or options = { method = "template" } for a sentence made of tags'
        )
    _source(options.model)
    extras.check("PIL", "safetensors", "torch", "transformers", extra="caption")


@checked_by(CaptionOptions, needs)
class Captioner:
    """`{"path": "cat.jpg"}` → `{"caption": "a cat on a sofa", "method": "model", "model": …}`.

    By template: `{"caption": "A picture of a tabby.", "method": "template", "tags": […]}`.
    """

    def __init__(self) -> None:
        self._options = CaptionOptions()
        self._method: Method | None = None

    def setup(self, ctx: Context) -> None:
        self.prepare(read(CaptionOptions, ctx.options))

    def prepare(self, options: CaptionOptions) -> None:
        """Load what the method needs. Raises what `needs` raises."""
        needs(options)
        self._options = options
        self._method = TagTemplate(options) if options.method == "template" else CaptionModel(options)

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        image = picture.load(payload, self._options)
        if self._method is None:
            raise RuntimeError("handle was called before setup")
        return self._method.describe(image)

    def teardown(self, ctx: Context) -> None:
        self._method = None


class TagTemplate:
    """A sentence built from the tagger's tags. It invents nothing and says how it was made."""

    def __init__(self, options: CaptionOptions) -> None:
        self._tagger = Tagger()
        self._tagger.prepare(TagOptions(threshold=options.threshold, top_k=options.top_k))

    def describe(self, image: Image) -> dict[str, Any]:
        tags = self._tagger.tags(image)
        return {"caption": sentence([tag["label"] for tag in tags]), "method": "template", "tags": tags}


class CaptionModel:
    """An image-to-text model of transformers, on one CPU thread.

    Only safetensors are loaded, and no code that comes with a model is run. `model` is a directory, which
    never causes network access, or a name on the hub.
    """

    def __init__(self, options: CaptionOptions) -> None:
        model = options.model or ""
        self._torch = require("torch", extra="caption")
        transformers = _transformers()
        self._torch.set_num_threads(1)  # pools scale by processes
        self._name = model
        self._options = options
        source, local = _source(model)
        settings = {
            "local_files_only": local,
            "trust_remote_code": False,
            "revision": options.revision or "main",
        }
        self._processor = transformers.AutoProcessor.from_pretrained(source, **settings)
        self._model = transformers.AutoModelForImageTextToText.from_pretrained(
            source, use_safetensors=True, **settings
        ).eval()

    def describe(self, image: Image) -> dict[str, Any]:
        inputs = self._processor(images=image, text=self._options.prompt, return_tensors="pt")
        with self._torch.inference_mode():
            # No sampling: the same picture gets the same caption, also when the job runs twice.
            tokens = self._model.generate(**inputs, max_new_tokens=self._options.max_new_tokens, do_sample=False)
        text = self._processor.batch_decode(tokens, skip_special_tokens=True)[0]
        return {"caption": text.strip(), "method": "model", "model": self._name}


def _transformers() -> Any:
    """The `transformers` module, quiet, and configured to send the hub only what a download needs.

    The second variable keeps it from asking a public service to convert a model without safetensors.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    require("transformers.utils.logging", extra="caption").disable_progress_bar()
    return require("transformers", extra="caption")


def _source(model: str) -> tuple[str, bool]:
    """The source for transformers, and whether it is a local directory."""
    path = Path(model).expanduser()
    if not model.startswith(("/", "./", "../", "~")) and not path.is_dir():
        return model, False
    found = folder("model", path).resolve()
    if not (found / "config.json").is_file():
        raise OptionsError([(("model",), f"{found} has no config.json: it is no model of transformers")])
    return str(found), True


def sentence(labels: list[str]) -> str:
    """Labels, most likely first, as a sentence: "A picture of a tabby, perhaps an Egyptian cat."."""
    if not labels:
        return "A picture in which the tagger recognised nothing."
    first, *others = (_with_article(label) for label in labels)
    return f"A picture of {first}{', perhaps ' + ' or '.join(others) if others else ''}."


def _with_article(label: str) -> str:
    return f"{'an' if label[0].lower() in 'aeiou' else 'a'} {label}"
