"""handle_batch of the picture handlers, and what it stands on: the same results, and each bad payload by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers import batch
from handlers.nsfw import NsfwClassifier
from handlers.tag import Tagger
from supervisor import Fail

Contexts = Callable[..., Any]
Sample = Callable[[str], str]
NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg")


@pytest.fixture(params=[Tagger, NsfwClassifier])
def handler(ml: None, context: Contexts, request: pytest.FixtureRequest) -> Any:
    made = request.param()
    made.setup(context())
    return made


def close(found: Any, expected: Any) -> None:
    """The same, with figures within a thousandth."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            close(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else expected)


def test_a_batch_finds_what_is_found_one_by_one(handler: Any, context: Contexts, sample: Sample) -> None:
    payloads = [{"path": sample(name)} for name in NAMES]
    alone = [handler.handle(payload, context()) for payload in payloads]
    close(handler.handle_batch(payloads, context()), alone)
    close(handler.handle_batch(payloads[::-1], context()), alone[::-1])
    assert len({str(result) for result in alone}) == len(NAMES), "they could be mixed up without anybody noticing"


def test_what_cannot_be_read_fails_by_itself(handler: Any, context: Contexts, sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    good = {"path": sample("coffee.png")}
    payloads = [{"path": "gone.png"}, good, {"path": str(tmp_path / "text.png")}, ["no object"], good]
    missing, first, damaged, shapeless, second = handler.handle_batch(payloads, context())
    assert [type(error) for error in (missing, damaged, shapeless)] == [Fail] * 3
    assert str(missing) == "no such file: gone.png"
    assert str(damaged).startswith("not a picture")
    close([first, second], [handler.handle(good, context())] * 2)


# The function that they share


def test_a_model_is_called_once_with_all_that_could_be_read() -> None:
    calls: list[list[int]] = []

    def model(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [number * 10 for number in numbers]

    first, fault, last = batch.run(["1", "x", "3"], int, model)
    assert (first, last) == (10, 30)
    assert isinstance(fault, ValueError)
    assert calls == [[1, 3]]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_nobodys_fault_ends_the_whole_batch(error: type[BaseException]) -> None:
    def read(payload: str) -> int:
        raise error

    with pytest.raises(error):
        batch.run(["1", "2"], read, lambda numbers: numbers)
