"""What may enter the queue: anything else is refused, with the field's name, before anything is written."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.enqueueing import MAX_KEY, Enqueue, new_job, new_jobs, new_request, payload_of
from supervisor.domain.errors import InvalidJob, QueueFull
from supervisor.domain.job import AlikeJobs
from supervisor.domain.values import MAX_PAYLOAD_BYTES, encode, known_time

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=20)


@given(values)
def test_any_json_is_stored_so_that_it_reads_back_the_same(value: Any) -> None:
    assert json.loads(new_job("tag", value).payload) == ({} if value is None else value)


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=100))
def test_types_of_the_allowed_characters_are_taken(type_: str) -> None:
    assert new_job(type_).type == type_


def nested(depth: int, value: object = ()) -> Any:
    value = [] if value == () else value
    for _ in range(depth - 1):
        value = [value]
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
REFUSED: dict[str, list[Any]] = {
    "type": ["", "tag!", "a b", "ä", "x" * 101, "tag\n", None, 5, b"tag", "a\\b", "a'b"],
    "payload": [
        *(math.nan, math.inf, {"x": -math.inf}, {1, 2}, b"x", object(), CYCLE, "\ud800", {"\udfff": 1}, {(1, 2): 3}),
        *(nested(65), nested(100_000), "x" * MAX_PAYLOAD_BYTES, "ä" * (MAX_PAYLOAD_BYTES // 2)),
    ],
    "priority": [-101, 101, 1.0, True, "5", None, math.nan],
    "max_attempts": [0, -1, 1.5, True, "3", 10**7],
    "requires": [5, ["a b"], [""], ["ä"], [1], ["x" * 101], "a\x00b", None],
    "delay": ["soon", -1, math.nan, 1e11, True],
    "at": [datetime.datetime(2033, 5, 18), "2033-05-18", -1, 1714644000123, math.inf, True],
    "unique_key": ["", 5, "x" * 1001, "\ud800"],
    "idempotency_key": ["", 7, "\ud800", "k" * (MAX_KEY - 3)],
    "max_waiting": [0, True, 1.5],
}
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"delay": "1s", "at": 5}, "delay"),
    ({"expires_at": 5}, "expires_at"),
    ({"expires_in": 0}, "expires_in"),
    ({"expires_in": "1h", "delay": "2h"}, "expires_in"),
    ({"expires_in": "1h", "delay": "1h", "expires_at": None}, "expires_in"),
    ({"expires_in": "1h", "at": 4e9}, "expires_in"),
    ({"expires_at": 4e9, "at": 4e9}, "expires_at"),
    ({"idempotency_key": "k", "unique_key": "k"}, "idempotency_key"),
    ({"idempotency_key": "k", "cancel": True}, "cancel"),
    ({"unique_key": "k", "cancel": True}, "cancel"),
    ({"on_failed": "run"}, "on_failed"),
]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [*(({field: value}, field) for field, values in REFUSED.items() for value in values), *TOGETHER],
    ids=lambda value: value if isinstance(value, str) else type(next(iter(value.values()))).__name__,
)
def test_what_is_refused_names_the_field(arguments: dict[str, Any], field: str) -> None:
    of_requests = {"idempotency_key", "max_waiting", "cancel"} & arguments.keys()
    arguments = {"type": "tag"} | arguments
    with pytest.raises(InvalidJob) as error:
        (new_request if of_requests else new_job)(**arguments)
    assert isinstance(error.value, ValueError)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}: ")
    str(error.value).encode("utf-8")


def test_what_a_failure_of_others_means_is_said_beside_those_others() -> None:
    assert new_job("tag", after=(), on_failed="run").after == ()  # the list may be computed
    assert [job.on_failed for job in new_jobs("tag", [Enqueue(on_failed="run")], after=[1])] == ["run"]
    with pytest.raises(InvalidJob, match="on_failed: it says what happens if one of the jobs in `after` fails"):
        new_jobs("tag", [Enqueue(on_failed="run")])


def test_the_limits_themselves_are_allowed() -> None:
    assert new_job("tag", nested(64)).payload == "[" * 64 + "]" * 64
    assert len(new_job("tag", "x" * (MAX_PAYLOAD_BYTES - 2)).payload) == MAX_PAYLOAD_BYTES
    assert encode("result", [{"a": [1]}] * 100).count("[") == 101  # many brackets, but not deep


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_a_priority_within_its_range_is_kept(priority: int) -> None:
    assert new_job("tag", priority=priority).priority == priority


@pytest.mark.parametrize(
    ("requires", "stored"),
    [
        ("", ""),
        ("b a b", "a b"),
        ("gpu,cpu", "cpu gpu"),
        (["b", "a"], "a b"),
        (("tag@2",), "tag@2"),
        (iter("ba"), "a b"),
    ],
)
def test_requirements_are_stored_as_a_sorted_set(requires: Any, stored: str) -> None:
    assert new_job("tag", requires=requires).requires == stored


def test_a_delay_counts_from_the_insert() -> None:
    job = new_job("tag", delay="10s")

    assert (job.due(50.0), new_job("tag", at=10.0).due(50.0), new_job("tag").due(50.0)) == (60.0, 10.0, 50.0)


def test_a_duration_may_be_one_of_python() -> None:
    job = new_job("tag", delay=datetime.timedelta(minutes=1), expires_in=datetime.timedelta(hours=1))

    assert (job.due(50.0), job.extra) == (110.0, {"expires_at": 3600.0})
    with pytest.raises(InvalidJob, match="must be finite and not negative"):
        new_job("tag", delay=datetime.timedelta(seconds=-1))


def test_a_time_with_its_zone_is_that_moment() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    at = datetime.datetime(2033, 5, 18, 5, 33, 20, tzinfo=zone)

    assert new_job("tag", at=at).scheduled_at == new_job("tag", at=2_000_000_000).scheduled_at == 2e9


def test_a_request_has_keys_of_its_own() -> None:
    plain = new_request("tag", {"n": 1}, priority=3, unique_key="k")
    assert (plain.type, plain.payload, plain.priority, plain.unique_key) == ("tag", '{"n":1}', 3, "k")
    assert (plain.max_waiting, plain.once) == (None, False)
    once = new_request("tag", idempotency_key="k", max_waiting=7)
    assert (once.unique_key, once.once, once.max_waiting) == ("run:k", True, 7)


def test_a_full_queue_says_what_is_full() -> None:
    error = QueueFull("tag", 100)
    assert str(error) == "100 jobs of type 'tag' are waiting already, which is the maximum"
    assert (error.type, error.max_waiting) == ("tag", 100)


BAD = [nested(65, {}), nested(5000, {}), {"x": "y" * (1 << 20)}, {"a": math.nan}, {"a": object()}, "\ud800"]


@pytest.mark.parametrize("bad", [*BAD, {"a": "\ud800"}], ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("others", [[], [{}] * 1500, ["text"] * 1500, [nested(64, {})] * 20], ids=len)
def test_one_bad_payload_among_many_is_refused_as_it_is_alone(bad: object, others: list[object]) -> None:
    with pytest.raises(InvalidJob) as alone:
        payload_of(bad)
    with pytest.raises(InvalidJob, match=re.escape(str(alone.value))):
        new_jobs("tag", [*others, bad, *others])


def test_deep_payloads_within_the_limit_are_accepted_together() -> None:
    jobs = new_jobs("tag", [nested(64, {})] * 1500)
    assert isinstance(jobs, AlikeJobs)
    assert jobs.total == 1500
    assert [len(json.loads(array)) for array in jobs.payloads] == [1000, 500]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e11])
def test_what_is_no_time_is_unknown(value: float | None) -> None:
    assert known_time(value) is None
    assert known_time(1_700_000_000.5) == 1_700_000_000.5
