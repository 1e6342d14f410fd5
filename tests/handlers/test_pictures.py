"""handlers.pictures: three models behind one handler, chosen by the job's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from handlers.caption import Captioner
from handlers.nsfw import NsfwClassifier
from handlers.pictures import Pictures
from handlers.tag import Tagger
from supervisor import Fail

Contexts = Callable[..., Any]
Sample = Callable[[str], str]
OPTIONS: dict[str, dict[str, Any]] = {
    "tag": {"top_k": 1, "threshold": 0.1},
    "caption": {"method": "template", "top_k": 2},
    "nsfw": {"threshold": 0.01},
}


def test_each_type_gets_what_its_own_handler_finds(ml: None, context: Contexts, sample: Sample) -> None:
    pictures = Pictures()
    pictures.setup(context(**OPTIONS))
    payload = {"path": sample("coffee.png")}
    for type, alone in (("tag", Tagger()), ("caption", Captioner()), ("nsfw", NsfwClassifier())):
        alone.setup(context(**OPTIONS[type]))
        ctx = context()
        ctx.type = type
        assert pictures.handle(payload, ctx) == alone.handle(payload, context())
    pictures.teardown(context())


def test_a_type_without_a_model_fails_for_good(context: Contexts) -> None:
    ctx = context()
    ctx.type = "translate"
    with pytest.raises(Fail, match="for jobs of the type translate; there are tag, caption, nsfw"):
        Pictures().handle({"path": "cat.jpg"}, ctx)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tags": {}}, "tags: "),
        ({"threshold": 0.2}, "threshold: "),
        ({"tag": {"threshold": 2}}, r"tag\.threshold: "),
        ({"caption": {"method": "guess"}}, r"caption\.method: "),
        ({"nsfw": 0.5}, "nsfw: "),
    ],
)
def test_an_option_that_is_wrong_stops_the_set_up(context: Contexts, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=f"the pool's options cannot be used: {fault}") as caught:
        Pictures().setup(context(**options))
    assert "\n" not in str(caught.value)


def test_without_a_captioning_model_it_says_what_to_write(ml: None, context: Contexts) -> None:
    with pytest.raises(ValueError, match="in the table caption: the caption handler has no model: set options"):
        Pictures().setup(context())
