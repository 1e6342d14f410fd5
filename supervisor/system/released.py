"""Numbers of descriptors that are not the worker's own any more, or never were: it has closed them itself, or they
belong to the handler's modules. A handler that closes them is not to blame. `taken` are those that the worker has
opened itself after its set-up, such as another connection to a server.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.system.kernel import open_descriptors

numbers: set[int] = set()
taken: set[int] = set()


def note(close: Callable[[], None]) -> None:
    """Close something, and note the numbers that are free afterwards."""
    before = open_descriptors()
    close()
    numbers.update(before - open_descriptors())
