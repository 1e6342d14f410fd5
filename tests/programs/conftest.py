"""A bridge with a real program behind it, in the test's own process."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load
from supervisor.domain.job import Claim
from supervisor.domain.recovery import JobPolicy
from supervisor.domain.settlement import Settlement
from supervisor.worker.context import Board
from supervisor.worker.executor import Executor
from supervisor.worker.recorder import Recorder
from supervisor.worker.subprocess_handler import SubprocessHandler


class Pair:
    """An executor with a bridge for its handler, and what the bridge has said of its program."""

    def __init__(self, folder: Path, command: list[str], keys: str = "") -> None:
        # A list of JSON texts is one of TOML's.
        (folder / "supervisor.toml").write_text(f"[pools.tag]\ncommand = {json.dumps(command)}\n{keys}\n")
        self.pool = load(folder / "supervisor.toml").pools["tag"]
        self.losses: list[str] = []
        self.leaves = 0
        self.board = Board()
        self.recorder = Recorder()
        self.bridge = SubprocessHandler(
            self.pool, folder, leave=self._leave, lost=self.losses.append, recorder=self.recorder
        )
        self.executor = Executor(
            self.bridge,
            self.board,
            JobPolicy(),
            capabilities=self.pool.capabilities,
            options=self.pool.options,
            timed_out=lambda claim: True,
            recorder=self.recorder,
        )
        self.begun = False
        self._jobs = 0

    def _leave(self) -> None:
        self.leaves += 1

    def set_up(self) -> Pair:
        self.bridge.setup(self.executor.context())
        self.begun = True
        return self

    def run(self, payload: str = "{}") -> Settlement:
        self._jobs += 1
        return self.executor.run(Claim(self._jobs, 1, "tag", payload, 1, None, 0))

    def tear_down(self) -> float:
        """Returns how many seconds it took."""
        began = time.monotonic()
        if self.begun:
            self.begun = False
            self.bridge.teardown(self.executor.context())
        return time.monotonic() - began


MakePair = Callable[..., Pair]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[MakePair]:
    """Make a pair; its program has ended afterwards."""
    with contextlib.ExitStack() as stack:

        def make(*command: str, **keys: Any) -> Pair:
            made = Pair(tmp_path, list(command), keys.get("keys", ""))
            stack.callback(made.tear_down)
            return made

        yield make
