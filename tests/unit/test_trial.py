"""A trial of a handler: whether its result is what is expected."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.worker import trial


def mismatch(expected: Any, found: Any, tolerance: float = 0.0) -> str:
    return trial.mismatch(expected, found, tolerance)


@pytest.mark.parametrize(
    ("expected", "found", "tolerance"),
    [
        ({"label": "cat"}, {"label": "cat", "score": 0.9}, 0.0),
        ({"all": [{"x": 1}, 2]}, {"all": [{"x": 1, "y": 2}, 2]}, 0.0),
        (0.98, 1, 0.02000001),
        (1, 1.0, 0.0),
        (None, None, 0.0),
        ([], [], 0.0),
        (True, True, 0.0),
    ],
)
def test_what_is_as_expected(expected: Any, found: Any, tolerance: float) -> None:
    assert mismatch(expected, found, tolerance) == ""


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        ({"label": "cat"}, {"label": "dog"}, 'result.label is "dog", not "cat"'),
        ({"label": "cat"}, {"score": 1}, "result has no 'label'"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "result.a.b[1] is 3, not 2"),
        ([1, 2], [1], "result has 1 elements, not 2"),
        ({"x": 1}, None, 'result is null, not {"x": 1}'),
        (1, True, "result is true, not 1"),
        (0, False, "result is false, not 0"),
        ("1", 1, 'result is 1, not "1"'),
    ],
)
def test_what_differs_is_named(expected: Any, found: Any, why: str) -> None:
    assert mismatch(expected, found) == why


def test_numbers_may_differ_by_the_tolerance_and_no_more() -> None:
    assert mismatch({"p": 0.5}, {"p": 0.509}, 0.01) == ""
    assert mismatch({"p": 0.5}, {"p": 0.52}, 0.01) == "result.p is 0.52, not 0.5"


def test_a_long_value_is_shortened() -> None:
    assert len(mismatch("x" * 5000, "y" * 5000)) < 250
