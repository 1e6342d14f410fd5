"""How many histories of the state machine are tried, and which: few, or as many as `make model` says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.machine import StoreMachine

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))  # 0: few, and always the same ones
PATIENCE = 0 if EXAMPLES else 600  # seconds for a test; 0 is for ever

_ALWAYS = settings(
    max_examples=40,
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)
_MORE = settings(_ALWAYS, max_examples=max(EXAMPLES, 1), derandomize=False)
_UNTIL_FOUND = settings(_ALWAYS, max_examples=5000, phases=[Phase.generate])


def histories(
    engine: str,
    fresh_url: Callable[[str, Path], str],
    machine: type[RuleBasedStateMachine] = StoreMachine,
    *,
    until_found: bool = False,
) -> None:
    """Raises what the first broken history raised: as short as it can be made, or with `until_found` as it is."""
    how = _UNTIL_FOUND if until_found else _MORE if EXAMPLES else _ALWAYS
    if engine != "sqlite" and not EXAMPLES:  # a server takes longer for everything
        how = settings(how, max_examples=10)
    made = {"engine": engine, "fresh_url": staticmethod(fresh_url)}
    run_state_machine_as_test(type(f"Histories_of_{engine}", (machine,), made), settings=how)
