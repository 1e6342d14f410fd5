"""When a failed or crashed job runs again."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.errors import Retry
from supervisor.domain.settlement import RetryPolicy

policies = st.builds(
    lambda **given: RetryPolicy(**given),  # hypothesis fills all fields of a named tuple
    max_attempts=st.integers(1, 10**6),
    backoff=st.sampled_from(["exponential", "linear", "fixed"]),
    base=st.floats(0, 1e6),
    max=st.floats(0, 1e7),
    jitter=st.floats(0, 1),
)
chances = st.floats(0, 1)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("exponential", [2, 4, 8, 16, 32, 60, 60]),
        ("linear", [2, 4, 6, 8, 10, 12, 14]),
        ("fixed", [2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_each_backoff_grows_as_its_name_says_up_to_its_maximum(backoff: str, delays: list[float]) -> None:
    policy = RetryPolicy(backoff=backoff, base=2, max=60, jitter=0)  # type: ignore[arg-type]

    assert [policy.delay(failures, 0.5) for failures in range(1, 8)] == delays


@given(policies, st.integers(1, 10**9), chances)
def test_a_delay_is_finite_and_within_the_jitter_around_the_maximum(
    policy: RetryPolicy, failures: int, chance: float
) -> None:
    delay = policy.delay(failures, chance)

    assert math.isfinite(delay)
    assert 0 <= delay <= policy.max * (1 + policy.jitter)


@given(policies, st.integers(1, 1000))
def test_without_luck_either_way_the_delay_never_shrinks(policy: RetryPolicy, failures: int) -> None:
    assert policy.delay(failures + 1, 0.5) >= policy.delay(failures, 0.5)


def test_jitter_spreads_to_both_sides() -> None:
    policy = RetryPolicy(backoff="fixed", base=10, jitter=0.2)

    assert [policy.delay(1, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([8, 10, 12])


@pytest.mark.parametrize(("own", "limit"), [(None, 5), (1, 1), (9, 9)])
def test_a_jobs_own_limit_goes_before_the_pools(own: int | None, limit: int) -> None:
    assert RetryPolicy(max_attempts=5).attempts_for(own) == limit


class Outer:
    class Inner(LookupError):
        pass


@pytest.mark.parametrize(
    ("listed", "error", "given_up"),
    [
        ("LookupError", KeyError(), True),
        ("builtins.LookupError", KeyError(), True),
        ("KeyError", LookupError(), False),
        ("json.JSONDecodeError", json.JSONDecodeError("", "", 0), True),  # defined in json.decoder
        ("Inner", Outer.Inner(), True),
        ("Outer.Inner", Outer.Inner(), True),
        (f"{__name__}.Outer.Inner", Outer.Inner(), True),
        ("nothing.LookupError", KeyError(), False),
        # Of a group, each one must be listed.
        ("LookupError", ExceptionGroup("two", [KeyError(), IndexError()]), True),
        ("LookupError", ExceptionGroup("two", [KeyError(), ValueError()]), False),
        ("LookupError", ExceptionGroup("outer", [KeyError(), ExceptionGroup("inner", [IndexError()])]), True),
        ("LookupError", ExceptionGroup("outer", [KeyError(), ExceptionGroup("inner", [OSError()])]), False),
        ("LookupError", BaseExceptionGroup("exit", [KeyError(), SystemExit()]), False),
        ("ExceptionGroup", ExceptionGroup("one", [OSError()]), True),
        ("Exception", ExceptionGroup("one", [OSError()]), True),
        ("Exception", ExceptionGroup("one", [OSError(), Retry()]), False),
        ("Exception", ExceptionGroup("outer", [ExceptionGroup("inner", [Retry()])]), False),
        ("Exception", Retry(), False),
    ],
)
def test_exceptions_are_listed_by_any_of_their_names(listed: str, error: Exception, given_up: bool) -> None:
    assert RetryPolicy(give_up_on=(listed,)).gives_up_on(error) is given_up
    assert not RetryPolicy().gives_up_on(error)


def test_the_errors_of_programs_are_known_by_their_first_word() -> None:
    policy = RetryPolicy(give_up_on=("ValueError", "requests.Timeout"))
    assert policy.gives_up_after("ValueError: no")
    assert policy.gives_up_after("app.ValueError: no")
    assert not policy.gives_up_after("KeyError: ValueError")
    assert not policy.gives_up_after("it failed")


class Busy(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (Busy(), 1),  # the nearest class, whatever comes first in the file
        (TimeoutError(), 2),
        (OSError(), 3),
        (json.JSONDecodeError("", "", 0), 4),
        (KeyError(), 9),
        (ExceptionGroup("alike", [TimeoutError(), ExceptionGroup("inner", [TimeoutError()])]), 2),
        (ExceptionGroup("unlike", [TimeoutError(), OSError()]), 9),
        (ExceptionGroup("unknown", [KeyError()]), 9),
    ],
)
def test_the_entry_of_the_nearest_class_counts(error: Exception, base: float) -> None:
    names = {"OSError": 3.0, "builtins.TimeoutError": 2.0, "Busy": 1.0, "json.JSONDecodeError": 4.0}
    policy = RetryPolicy(max_attempts=7, base=9, on={name: {"base": base} for name, base in names.items()})
    assert policy.after(error).base == base
    assert policy.after(error).max_attempts == 7


def test_a_programs_error_has_the_entry_of_its_first_word() -> None:
    policy = RetryPolicy(on={"Timeout": {"max_attempts": 2}, "requests.Timeout": {"max_attempts": 3}})
    messages = ("requests.Timeout: late", "other.Timeout: late", "Timeout", "no Timeout: late")
    assert [policy.after_message(message).max_attempts for message in messages] == [3, 2, 2, 5]
