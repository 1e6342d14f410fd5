"""A trial of a handler: whether its result is what is expected."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.worker.trial import matches


@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "same"),
    [
        ({"label": "cat"}, {"label": "cat", "score": 0.9}, 0.0, True),
        ({"all": [{"x": 1}, 2]}, {"all": [{"x": 1, "y": 2}, 2]}, 0.0, True),
        (0.98, 1, 0.02000001, True),
        (1, 1.0, 0.0, True),
        (None, None, 0.0, True),
        ({"p": 0.5}, {"p": 0.509}, 0.01, True),
        ({"p": 0.5}, {"p": 0.52}, 0.01, False),
        ({"label": "cat"}, {"label": "dog"}, 0.0, False),
        ({"label": "cat"}, {"score": 1}, 0.0, False),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, 0.0, False),
        ([1, 2], [1], 0.0, False),
        ({"x": 1}, None, 0.0, False),
        (1, True, 0.0, False),
        (0, False, 0.0, False),
        ("1", 1, 0.0, False),
    ],
)
def test_a_value_is_compared_with_what_is_expected(expected: Any, found: Any, tolerance: float, same: bool) -> None:
    assert matches(expected, found, tolerance) is same
