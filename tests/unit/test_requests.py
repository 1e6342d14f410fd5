"""What a job that somebody waits for may be given."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import InvalidJob, QueueFull
from supervisor.domain.intake import MAX_KEY, new_request


def test_without_options_of_its_own_it_is_like_any_job() -> None:
    job = new_request("tag", {"n": 1}, priority=3, unique_key="k")
    assert (job.type, job.payload, job.priority, job.unique_key) == ("tag", '{"n":1}', 3, "k")
    assert (job.max_waiting, job.once) == (None, False)


def test_an_idempotency_key_has_keys_of_its_own() -> None:
    job = new_request("tag", idempotency_key="k", max_waiting=7)
    assert (job.unique_key, job.once, job.max_waiting) == ("run:k", True, 7)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": 7}, "idempotency_key"),
        ({"idempotency_key": "\ud800"}, "idempotency_key"),
        ({"idempotency_key": "k" * (MAX_KEY - 3)}, "idempotency_key"),
        ({"idempotency_key": "k", "unique_key": "k"}, "idempotency_key"),
        ({"idempotency_key": "k", "cancel": True}, "cancel"),
        ({"unique_key": "k", "cancel": True}, "cancel"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_waiting": True}, "max_waiting"),
        ({"max_waiting": 1.5}, "max_waiting"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        new_request("tag", **options)
    assert refused.value.field == field


def test_a_full_queue_says_what_is_full() -> None:
    error = QueueFull("tag", 100)
    assert str(error) == "100 jobs of type 'tag' are waiting already, which is the maximum"
    assert (error.type, error.max_waiting) == ("tag", 100)
