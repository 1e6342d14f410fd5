"""Which jobs run together: by key, by cost, by what they may still be in, and nobody waits for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.batching import Candidate, as_cost, as_key, at_path, together
from supervisor.domain.job import Claim
from supervisor.worker.handler import Reported
from supervisor.worker.runners.batch import BatchPlan, is_out_of_memory

UNLIMITED = float("inf")


def keyed(*keys: str | None, cost: float = 0.0, most: int = 99) -> list[Candidate]:
    return [Candidate(key, cost, most) for key in keys]


def test_those_with_the_key_of_the_first_run_together() -> None:
    assert together(keyed("a", "b", "a", "c", "a"), 16, UNLIMITED) == [0, 2, 4]
    assert together(keyed("a", "b", "a", "c", "a"), 2, UNLIMITED) == [0, 2]


def test_a_job_that_nothing_is_known_of_runs_alone() -> None:
    assert together(keyed(None, None, "a"), 16, UNLIMITED) == [0]
    assert together(keyed("a", None, "a"), 16, UNLIMITED) == [0, 2]


def test_a_batch_closes_before_it_costs_more_than_the_budget() -> None:
    jobs = [Candidate("", cost, 99) for cost in (4.0, 4.0, 3.0, 1.0)]
    assert together(jobs, 16, 10.0) == [0, 1]
    assert together(jobs, 16, 11.0) == [0, 1, 2]
    assert together([Candidate("", 50.0, 99), *jobs], 16, 10.0) == [0]


def test_no_job_of_the_same_key_is_overtaken_because_it_costs_much() -> None:
    jobs = [Candidate("a", cost, 99) for cost in (1.0, 50.0, 1.0)]
    assert together(jobs, 16, 10.0) == [0]


def test_a_job_of_a_batch_that_went_wrong_makes_its_next_batch_small() -> None:
    assert together([*keyed("", most=2), *keyed("", "")], 16, UNLIMITED) == [0, 1]
    assert together([*keyed("", ""), *keyed("", most=2)], 16, UNLIMITED) == [0, 1]


CANDIDATES = st.builds(Candidate, st.sampled_from(["a", "b", None]), st.floats(0, 20), st.integers(1, 20))


@given(st.lists(CANDIDATES, min_size=1, max_size=40), st.integers(1, 20), st.floats(0.1, 50))
def test_each_batch_is_allowed_and_every_job_runs_at_last(jobs: list[Candidate], most: int, budget: float) -> None:
    waiting = jobs
    for _ in range(len(jobs)):
        places = together(waiting, most, budget)
        batch = [waiting[place] for place in places]
        assert places[0] == 0
        assert len({job.key for job in batch}) == 1
        assert len(batch) <= min(most, *(job.most for job in batch))
        assert len(batch) == 1 or sum(job.cost for job in batch) <= budget * 1.000001
        waiting = [job for place, job in enumerate(waiting) if place not in places]
        if not waiting:
            break
    assert not waiting


@pytest.mark.parametrize(
    ("payload", "path", "value"),
    [
        ({"model": "small"}, "model", "small"),
        ({"options": {"model": 3}}, "options.model", 3),
        ({"options": {}}, "options.model", None),
        ({"options": 3}, "options.model", None),
        ([1], "model", None),
    ],
)
def test_a_field_is_found_by_its_path(payload: Any, path: str, value: Any) -> None:
    assert at_path(payload, path) == value


def test_keys_are_the_same_for_equal_values_only() -> None:
    values: list[Any] = ["1", 1, True, None, "null", [1, 2], {"a": 1, "b": 2}]
    assert len({as_key(value) for value in values}) == len(values)
    assert as_key({"b": 2, "a": 1}) == as_key({"a": 1, "b": 2})
    assert as_key((224, 224)) == as_key([224, 224])
    with pytest.raises(TypeError):
        as_key(object())


@pytest.mark.parametrize("value", [None, True, "3", -1, float("nan"), float("inf"), [3]])
def test_what_is_no_cost_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="a cost must be a number of at least 0"):
        as_cost(value)


def claim(number: int, payload: str = "{}") -> Claim:
    return Claim(number, 1, "tag", payload, 1, None, 0)


def plan(**keys: Any) -> BatchPlan:
    settings = {"batch_size": 16, "batch_auto": False, "batch_key": None, "batch_cost": None, "batch_budget": None}
    return BatchPlan(cast("Any", SimpleNamespace(**settings | keys)))


@pytest.mark.parametrize("payload", ["{", '{"cost": "many"}'])
def test_a_job_whose_cost_cannot_be_had_runs_alone(payload: str) -> None:
    batch, rest = plan(batch_cost="cost", batch_budget=10.0).divide([claim(1, payload), claim(2, '{"cost": 1}')], {})
    assert ([one.job_id for one in batch], [one.job_id for one in rest]) == ([1], [2])


def test_what_is_left_over_is_claimed_again_in_a_larger_look() -> None:
    many = plan(batch_key="key")
    assert many.want == 16
    for _ in range(20):
        batch, rest = many.divide([claim(n, f'{{"key": {n % 4}}}') for n in range(32)], {})
        assert (len(batch), len(rest)) == (8, 24)

    assert many.size == 16
    assert 48 <= many.want <= 64


def test_a_budget_that_ends_batches_early_makes_claims_smaller() -> None:
    dear = plan(batch_cost="cost", batch_budget=10.0)
    for _ in range(30):
        batch, _ = dear.divide([claim(n, '{"cost": 3.0}') for n in range(dear.want)], {})
        assert len(batch) == 3

    assert 3 <= dear.want <= 6


class OutOfMemoryError(RuntimeError):
    """As torch's is named."""


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError


def caused_by(cause: BaseException) -> Exception:
    error = ValueError("the model failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "whether"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("12 are too many"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("the queue is full"), False),
        (ValueError("out of memory"), False),
        (caused_by(MemoryError()), True),
        (Reported("memory", "MemoryError"), True),
        (Reported("exception", "torch.OutOfMemoryError: CUDA out of memory."), True),
        (Reported("exception", "ValueError: no"), False),
        (Unprintable(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lack_of_memory_is_known_by_its_class_or_its_words(error: BaseException, whether: bool) -> None:
    assert is_out_of_memory(error) is whether
