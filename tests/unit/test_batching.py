"""Which jobs run together: by key, by what they may still be in, and nobody waits for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.batching import Candidate, as_key, at_path, together
from supervisor.domain.job import Claim
from supervisor.worker.handler import Reported
from supervisor.worker.runners.batch import BatchPlan, is_out_of_memory


def keyed(*keys: str | None, most: int = 99) -> list[Candidate]:
    return [Candidate(key, most) for key in keys]


def test_those_with_the_key_of_the_first_run_together() -> None:
    assert together(keyed("a", "b", "a", "c", "a"), 16) == [0, 2, 4]
    assert together(keyed("a", "b", "a", "c", "a"), 2) == [0, 2]


def test_a_job_that_nothing_is_known_of_runs_alone() -> None:
    assert together(keyed(None, None, "a"), 16) == [0]
    assert together(keyed("a", None, "a"), 16) == [0, 2]


def test_a_job_of_a_batch_that_went_wrong_makes_its_next_batch_small() -> None:
    assert together([*keyed("", most=2), *keyed("", "")], 16) == [0, 1]
    assert together([*keyed("", ""), *keyed("", most=2)], 16) == [0, 1]


CANDIDATES = st.builds(Candidate, st.sampled_from(["a", "b", None]), st.integers(1, 20))


@given(st.lists(CANDIDATES, min_size=1, max_size=40), st.integers(1, 20))
def test_each_batch_is_allowed_and_every_job_runs_at_last(jobs: list[Candidate], most: int) -> None:
    waiting = jobs
    for _ in range(len(jobs)):
        places = together(waiting, most)
        batch = [waiting[place] for place in places]
        assert places[0] == 0
        assert len({job.key for job in batch}) == 1
        assert len(batch) <= min(most, *(job.most for job in batch))
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


def claim(number: int, payload: str = "{}") -> Claim:
    return Claim(number, 1, "tag", payload, 1, None, 0)


def plan() -> BatchPlan:
    return BatchPlan(cast("Any", SimpleNamespace(batch_size=16, batch_auto=False, batch_key="key")))


@pytest.mark.fault(100)
def test_a_job_whose_key_cannot_be_had_runs_alone() -> None:
    for payloads, chosen in (["{", "{}"], [1]), (["{}", "{", "{}"], [1, 3]):
        claims = [claim(number, payload) for number, payload in enumerate(payloads, 1)]
        assert [one.job_id for one in plan().divide(claims, {})[0]] == chosen


def test_what_is_left_over_is_claimed_again_in_a_larger_look() -> None:
    many = plan()
    assert many.want == 16
    for _ in range(20):
        batch, rest = many.divide([claim(n, f'{{"key": {n % 4}}}') for n in range(32)], {})
        assert (len(batch), len(rest)) == (8, 24)

    assert many.size == 16
    assert 48 <= many.want <= 64


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
