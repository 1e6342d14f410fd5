"""The common part of `handle_batch` for any model: one invalid payload must not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Read = TypeVar("Read")
Result = TypeVar("Result")


def run(
    payloads: Sequence[Any], read: Callable[[Any], Read], model: Callable[[list[Read]], Iterable[Result]]
) -> list[Result | Exception]:
    """For each payload, in order, the model's result, or the exception with which `read` rejected it.

    `model` is called once with everything that could be read, and not at all if that is nothing; it returns a result
    for each. Its own exceptions belong to no single payload and pass through, like an interruption.
    """
    results: list[Result | Exception | None] = []
    inputs: list[Read] = []
    for payload in payloads:
        try:
            inputs.append(read(payload))
            results.append(None)
        except MemoryError:
            raise  # half as many may fit into memory
        except Exception as error:
            results.append(error)
    outputs = iter(model(inputs) if inputs else ())
    return [next(outputs) if result is None else result for result in results]
