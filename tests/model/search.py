"""Every state that can be reached, by the shortest way."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.model.protocol import Violation


class Model(Protocol):
    """What there is at first, and what may happen next; states are values. `check` raises Violation."""

    def first(self) -> Any: ...

    def steps(self, state: Any) -> Iterator[tuple[str, Any]]: ...

    def canonical(self, state: Any) -> Any: ...

    def check(self, state: Any, words: str) -> None: ...


@dataclass
class Found:
    """What a search has seen. `complete`: there is no state that it has not. `lost` counts states from which
    no way leads to an end.
    """

    states: int = 0
    steps: int = 0
    depth: int = 0
    complete: bool = False
    lost: int = 0
    violation: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        how = "all there are" if self.complete else f"to a depth of {self.depth}"
        counted = f"{self.states} states, {how}; {self.steps} steps"
        if not self.violation:
            return counted
        lines = [f"{number:3d}. {step}" for number, step in enumerate([*self.trace, self.violation], 1)]
        return "\n".join([*lines, f"({counted})"])


class Search:
    """Breadth first, so that the first violation comes by the shortest way. Ends when `most` states are known."""

    def __init__(self, protocol: Model, most: int) -> None:
        self._protocol = protocol
        self._most = most
        first = protocol.first()
        self._numbers: dict[Any, int] = {first: 0}
        self._todo = deque([first])
        self._depths = array("l", [0])
        self._parents = array("l", [-1])
        self._ways = [""]
        self._words: dict[str, str] = {}  # each description once
        self._edges = array("l")  # from, to, from, to …
        self._ends: list[int] = []

    def run(self) -> Found:
        found = Found()
        try:
            while self._todo and len(self._numbers) < self._most:
                state = self._todo.popleft()
                self._expand(self._numbers[state], state)
        except Violation as violation:
            found.violation, found.trace = str(violation), self._way(self._at)
        else:
            found.complete = not self._todo
            found.lost = self._count_lost()
        found.states, found.steps, found.depth = len(self._numbers), len(self._edges) // 2, max(self._depths)
        return found

    def _expand(self, number: int, state: Any) -> None:
        self._at = number
        if state.finished:
            self._ends.append(number)
        for words, after in self._protocol.steps(state):
            reached = self._protocol.canonical(after)
            known = self._numbers.get(reached)
            if known is None:
                self._protocol.check(reached, words)
                known = self._numbers[reached] = len(self._numbers)
                self._todo.append(reached)
                self._depths.append(self._depths[number] + 1)
                self._parents.append(number)
                self._ways.append(self._words.setdefault(words, words))
            self._edges.extend((number, known))

    def _way(self, number: int) -> list[str]:
        steps = []
        while number:
            steps.append(self._ways[number])
            number = self._parents[number]
        return steps[::-1]

    def _count_lost(self) -> int:
        """States from which neither an end nor one that was not looked into can be reached."""
        backwards: list[list[int]] = [[] for _ in self._numbers]
        for at in range(0, len(self._edges), 2):
            backwards[self._edges[at + 1]].append(self._edges[at])
        saved = bytearray(len(self._numbers))
        todo = self._ends + [self._numbers[state] for state in self._todo]
        while todo:
            number = todo.pop()
            if not saved[number]:
                saved[number] = True
                todo.extend(backwards[number])
        return len(saved) - sum(saved)
