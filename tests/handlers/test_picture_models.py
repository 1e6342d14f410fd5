"""The taggers and classifiers with their real models: known pictures get known figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.caption import Captioner, sentence
from handlers.nsfw import NsfwClassifier
from handlers.tag import Tagger
from supervisor import Fail

Contexts = Callable[..., Any]
Sample = Callable[[str], str]


@pytest.fixture
def tagger(ml: None, context: Contexts) -> Tagger:
    handler = Tagger()
    handler.setup(context(threshold=0.2, top_k=3))
    return handler


def labels(result: dict[str, Any]) -> list[str]:
    return [tag["label"] for tag in result["tags"]]


def test_coffee_is_tagged_espresso(tagger: Tagger, context: Contexts, sample: Sample) -> None:
    result = tagger.handle({"path": sample("coffee.png")}, context())
    assert labels(result) == ["espresso"]
    assert result["tags"][0]["score"] == pytest.approx(0.95, abs=0.02)


def test_chelsea_is_a_cat(tagger: Tagger, context: Contexts, sample: Sample) -> None:
    found = labels(tagger.handle({"path": sample("chelsea.png")}, context()))
    assert found
    assert all(name.endswith("cat") for name in found)


def test_threshold_and_top_k_bound_the_tags(ml: None, context: Contexts, sample: Sample) -> None:
    handler = Tagger()
    handler.setup(context(threshold=0.0, top_k=7))
    tags = handler.handle({"path": sample("chelsea.png")}, context())["tags"]
    scores = [tag["score"] for tag in tags]
    assert len(tags) == 7
    assert scores == sorted(scores, reverse=True)
    handler.setup(context(threshold=1.0))
    assert handler.handle({"path": sample("chelsea.png")}, context())["tags"] == []


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("astronaut.png", 0.032),
        ("chelsea.png", 0.0),
        ("coffee.png", 0.013),
        ("rocket.jpg", 0.0),
        ("retina.jpg", 0.177),
    ],
)
def test_nsfw_scores_are_those_of_the_reference(
    ml: None, context: Contexts, sample: Sample, name: str, score: float
) -> None:
    handler = NsfwClassifier()
    handler.setup(context(threshold=0.15))
    result = handler.handle({"path": sample(name)}, context())
    assert result["nsfw"] == pytest.approx(score, abs=0.01)
    assert result["is_nsfw"] is (name == "retina.jpg")


def test_a_caption_by_template_says_so(ml: None, context: Contexts, sample: Sample) -> None:
    handler = Captioner()
    handler.setup(context(method="template"))
    result = handler.handle({"path": sample("coffee.png")}, context())
    assert (result["caption"], result["method"]) == ("A picture of an espresso.", "template")
    assert labels(result) == ["espresso"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "A picture in which the tagger recognised nothing."),
        (["tabby"], "A picture of a tabby."),
        (["tabby", "Egyptian cat", "tub"], "A picture of a tabby, perhaps an Egyptian cat or a tub."),
    ],
)
def test_the_template_makes_a_sentence(names: list[str], text: str) -> None:
    assert sentence(names) == text


@pytest.mark.parametrize("options", [{}, {"method": "model"}, {"method": "model", "model": ""}])
def test_without_a_model_or_the_template_there_is_no_captioner(context: Contexts, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="the caption handler has no model: set options"):
        Captioner().setup(context(**options))


def test_a_directory_without_a_model_is_found_before_anything_is_loaded(context: Contexts, tmp_path: Path) -> None:
    for folder, fault in (("/nowhere/blip", "there is no folder /nowhere/blip"), (tmp_path, "has no config.json")):
        with pytest.raises(ValueError, match=rf"^options\.model: .*{fault}"):
            Captioner.check_options({"model": str(folder)})
        with pytest.raises(ValueError, match=rf"^options\.model: .*{fault}"):
            Captioner().setup(context(model=str(folder)))


@pytest.mark.parametrize("handler", [Tagger, NsfwClassifier])
def test_garbage_fails_for_good(ml: None, context: Contexts, tmp_path: Path, handler: Any) -> None:
    garbage = tmp_path / "garbage.jpg"
    garbage.write_bytes(os.urandom(2000))
    instance = handler()
    instance.setup(context())
    with pytest.raises(Fail, match="picture"):
        instance.handle({"path": str(garbage)}, context())


@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        (Tagger, {"treshold": 0.2}, "treshold"),
        (Tagger, {"threshold": "0.2"}, "threshold"),
        (Tagger, {"top_k": 0}, "top_k"),
        (NsfwClassifier, {"threshold": 2}, "threshold"),
        (Captioner, {"method": "guess"}, "method"),
    ],
)
def test_options_that_are_wrong_stop_the_set_up(
    context: Contexts, handler: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"options\.{message}: ") as caught:
        handler().setup(context(**options))
    assert "\n" not in str(caught.value)


def test_the_runtime_reports_nothing_home(ml: None, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    program = (
        "import types; from handlers.nsfw import NsfwClassifier; "
        "NsfwClassifier().setup(types.SimpleNamespace(options={}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**environment, "XDG_CACHE_HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == [], "onnxruntime has made an identifier and a store of events"
