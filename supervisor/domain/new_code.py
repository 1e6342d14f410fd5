"""What is told of new code that did not work."""

from __future__ import annotations

_TRIALS = {"canary": "canary", "warmup": "warm-up", "set-up": "set-up"}


def new_code_failed(why: str, *, old_serves: bool) -> str:
    """One sentence from the error of a failed set-up, which names the trial that failed."""
    trial, failed, rest = why.partition(" failed: ")
    if failed and trial in _TRIALS:
        what = f"the new code failed its {_TRIALS[trial]}: {rest}"
    else:
        what = f"the new code cannot be loaded: {why}"
    return f"{what}; " + ("the old code keeps running" if old_serves else "no older code is loaded")
