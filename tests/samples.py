"""Tests of many cases of one behaviour: some of them are run by `make test`, the others by `make long` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], quick: int) -> list[Any]:
    """For `parametrize`: the first `quick` cases as they are, the others marked `long`.

    What differs between the cases of a sample must be what the code distinguishes. `make long` finds the files that
    have such tests by this function's name.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.long] if at >= quick else [])
        for at, case in enumerate(cases)
    ]
