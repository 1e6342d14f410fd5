"""Durations and sizes as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.text import human, human_size, seconds, size

DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(DURATIONS)))
def test_a_number_and_a_unit_are_that_many_seconds(count: object, unit: str) -> None:
    assert seconds(f" {count}{unit} ") == float(str(count)) * DURATIONS[unit]


@given(st.floats(0, 1e300) | st.integers(0, 10**300))
def test_a_number_is_seconds_already(value: float) -> None:
    assert seconds(value) == float(value)


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " "]))
def test_a_number_and_a_binary_unit_are_that_many_bytes(count: int, unit: str, space: str) -> None:
    assert size(f"{count}{space}{unit}") == count * SIZES[unit]


@pytest.mark.parametrize(("read", "refusal"), [(seconds, "is not a duration"), (size, "is not a size")])
@given(value=st.text(max_size=40) | st.floats() | st.booleans() | st.none() | st.lists(st.integers()))
def test_anything_else_is_a_value_error_and_never_another_one(
    value: object, read: Callable[[Any], float], refusal: str
) -> None:
    result, problem = 0.0, refusal
    try:
        result = read(value)
    except ValueError as error:
        problem = str(error)

    assert 0 <= result < math.inf
    assert refusal in problem


NO_DURATIONS = [
    "",
    "10",
    "s",
    "9" * 400 + "s",
    10**400,
    "-1s",
    "1 s",
    "1S",
    "1w",
    "1e3s",
    "1s 500ms",
    ".5s",
    "inf",
    True,
]
NO_SIZES = ["", "2", "2GB", "2G", "2gib", "-1MiB", "1e3MiB", "2 GiB free"]


@pytest.mark.parametrize("value", NO_DURATIONS)
def test_what_only_resembles_a_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(value)


@pytest.mark.parametrize("value", NO_SIZES)
def test_what_only_resembles_a_size_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "250ms"), (3650 * 86400, "3650d"), (3.2, "3.2s"), (10, "10s"), (300, "5m"), (7200, "2h"), (604_800, "7d")],
)
def test_seconds_are_shown_as_people_write_them(value: float, text: str) -> None:
    assert human(value) == text
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("value", "text"), [(12, "12B"), (512 * 2**20, "512MiB"), (2 * 2**30, "2GiB")])
def test_bytes_are_shown_as_people_write_them(value: int, text: str) -> None:
    assert human_size(value) == text
    assert size(text) == value
