"""Wait for descriptors; each can have a callback, or just wake the loop."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Reactor:
    """A selector that allows unwatching twice: a dead process's descriptors end in any order."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readable: frozenset[int] = frozenset()

    def watch(self, descriptor: int, callback: Callable[[], None] | None = None) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        if descriptor >= 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Sleep until a descriptor is readable, for at most this many seconds."""
        events = self._selector.select(max(0.0, seconds))
        self._readable = frozenset(key.fd for key, _ in events)
        for key, _ in events:
            # An earlier callback may have unwatched it.
            if key.data is not None and key.fd in self._selector.get_map():
                key.data()

    def is_readable(self, descriptor: int) -> bool:
        """Whether the last wait found it so: reading it otherwise would cost a system call that finds nothing."""
        return descriptor in self._readable
