"""Tags, captions and nsfw scores from one process: its models are loaded once, and a job's type selects one.

    [pools.pictures]
    handler = "handlers.pictures:Pictures"
    types = ["tag", "caption", "nsfw"]
    preload_setup = true                        # loaded before the fork: all workers share the models' memory
    options = { tag = { top_k = 3 }, caption = { method = "template" } }

One pool for three types has no worker that waits for jobs of one type while jobs of another wait for a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handlers import caption, nsfw, tag
from handlers.caption import Captioner
from handlers.nsfw import NsfwClassifier
from handlers.options import OptionsError, PicturesOptions, checked_by, read
from handlers.tag import Tagger
from supervisor import Fail

if TYPE_CHECKING:
    from supervisor import Context


def needs(options: PicturesOptions) -> None:
    """What the three need."""
    tag.needs(options.tag)
    nsfw.needs(options.nsfw)
    try:
        caption.needs(options.caption)
    except OptionsError as error:
        raise OptionsError([(("caption", *key), text) for key, text in error.faults]) from None
    except ValueError as error:
        raise OptionsError([(("caption",), str(error))]) from None


@checked_by(PicturesOptions, needs)
class Pictures:
    """What `Tagger`, `Captioner` and `NsfwClassifier` do, for jobs of the types `tag`, `caption` and `nsfw`."""

    def __init__(self) -> None:
        self._tagger, self._captioner, self._classifier = Tagger(), Captioner(), NsfwClassifier()
        self._by_type: dict[str, Tagger | Captioner | NsfwClassifier] = {
            "tag": self._tagger,
            "caption": self._captioner,
            "nsfw": self._classifier,
        }

    def setup(self, ctx: Context) -> None:
        """Load all three. Raises ValueError if one of the tables in `options` cannot be used."""
        options = read(PicturesOptions, ctx.options)
        needs(options)
        self._tagger.prepare(options.tag)
        self._captioner.prepare(options.caption)
        self._classifier.prepare(options.nsfw)

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the models run within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        handler = self._by_type.get(ctx.type)
        if handler is None:
            raise Fail(f"there is no model for jobs of type {ctx.type}; the types are {', '.join(self._by_type)}")
        return handler.handle(payload, ctx)

    def teardown(self, ctx: Context) -> None:
        for handler in self._by_type.values():
            handler.teardown(ctx)
