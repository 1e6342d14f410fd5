"""What is told of new code that did not work."""

from __future__ import annotations

import pytest

from supervisor.domain.new_code import new_code_failed


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("canary failed: result is 2, not 1", "the new code failed its canary: result is 2, not 1"),
        ("warmup failed: ValueError: no", "the new code failed its warm-up: ValueError: no"),
        ("set-up failed: it failed: twice", "the new code failed its set-up: it failed: twice"),
        (
            "jobs:tag: importing it failed: SyntaxError",
            "the new code cannot be loaded: jobs:tag: importing it failed: SyntaxError",
        ),
        ("max_memory is too low", "the new code cannot be loaded: max_memory is too low"),
    ],
)
def test_it_says_what_failed_and_whether_older_code_serves(why: str, told: str) -> None:
    assert new_code_failed(why, old_serves=True) == f"{told}; the old code keeps running"
    assert new_code_failed(why, old_serves=False) == f"{told}; no older code is loaded"
