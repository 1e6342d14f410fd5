"""What `handle_batch` has in common, whatever the model: one bad payload must not spoil the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Read = TypeVar("Read")
Result = TypeVar("Result")


def run(
    payloads: Sequence[Any], read: Callable[[Any], Read], model: Callable[[list[Read]], Iterable[Result]]
) -> list[Result | Exception]:
    """For each payload, in their order, the model's result, or the exception with which `read` refused it.

    `model` is called once with all that could be read, and not at all if there is none; it returns a result for
    each. What it raises is nobody's in particular and passes through, like an interruption.
    """
    results: list[Result | Exception | None] = []
    inputs: list[Read] = []
    for payload in payloads:
        try:
            inputs.append(read(payload))
            results.append(None)
        except MemoryError:
            raise  # half as many may fit
        except Exception as error:
            results.append(error)
    outputs = iter(model(inputs) if inputs else ())
    return [next(outputs) if result is None else result for result in results]
