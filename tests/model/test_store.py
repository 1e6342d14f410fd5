"""The real store beside the model: the same calls, the same rows, after every step of a random history.

`make model EXAMPLES=2000` runs more histories, and other ones each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.histories import PATIENCE, histories
from tests.store.kit import ENGINES


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_happens_the_store_does_what_the_model_does(
    engine: str, fresh_url: Callable[[str, Path], str]
) -> None:
    histories(engine, fresh_url)
