"""The files of requests: payloads, and which may go."""

from __future__ import annotations

import pytest

from supervisor.admin.uploads import may_go, payload_of_file
from supervisor.domain.enqueueing import is_same, require_same
from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import Job, NewJob, Status

ONE, TWO = "1" * 32, "2" * 32
CAT, DOG = "c" * 64, "d" * 64


@pytest.mark.parametrize(
    ("has_job", "succeeded_at", "keep_done", "goes"),
    [
        (False, None, 60.0, True),
        (False, None, None, True),
        (True, None, 0.0, False),  # it may be retried
        (True, 100.0, 60.0, True),
        (True, 950.0, 60.0, False),
        (True, 100.0, None, False),  # as long as the job
    ],
)
def test_a_file_goes_with_its_job_or_some_time_after_its_success(
    has_job: bool, succeeded_at: float | None, keep_done: float | None, goes: bool
) -> None:
    assert may_go(has_job, succeeded_at, 1000.0, keep_done) is goes


def test_fields_stand_beside_the_path() -> None:
    found = payload_of_file("/x", "image/png", '{"width": 4}')
    assert found == {"path": "/x", "media_type": "image/png", "width": 4}


@pytest.mark.parametrize(
    "fields", ["", "{", "[]", "1", '{"path": "/etc/passwd"}', '{"media_type": "x"}', "[" * 100_000]
)
def test_fields_that_do_not_fit_are_refused(fields: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        payload_of_file("/x", "image/png", fields)
    assert caught.value.field == "fields"


def named(token: str, digest: str, **more: object) -> dict[str, object]:
    return {"path": f"/srv/spool/{token}-{digest}", "media_type": "image/png"} | more


FILE = named(ONE, CAT)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (FILE, named(TWO, CAT), True),
        ({"a": {"b": 1, "c": 2}, "d": 3}, {"d": 3, "a": {"c": 2, "b": 1}}, True),
        (FILE, named(TWO, DOG), False),
        (FILE, named(TWO, CAT, media_type="image/gif"), False),
        (FILE, named(TWO, CAT, width=4), False),
        (FILE, {"path": "/srv/cat.png", "media_type": "image/png"}, False),
        (FILE, {"path": 1}, False),
        (FILE, [], False),
        (FILE, None, False),
        ({"path": "/a"}, {"path": "/b"}, False),
        (None, {}, False),
    ],
)
def test_two_requests_are_the_same_if_all_is_equal_but_the_names_of_equal_files(
    one: object, other: object, same: bool
) -> None:
    assert is_same(one, other) is is_same(other, one) is same


@pytest.mark.parametrize("one", [True, 1, 1.0])
@pytest.mark.parametrize("other", [True, 1, 1.0])
def test_what_python_takes_for_equal_may_be_different_json(one: object, other: object) -> None:
    same = type(one) is type(other)
    assert is_same({"n": [one]}, {"n": [other]}) is same
    assert is_same(named(ONE, CAT, n=one), named(TWO, CAT, n=other)) is same


def test_the_key_of_a_request_with_another_file_is_refused(finished: Job) -> None:
    require_same(finished, NewJob("tag", f'{{"path": "/x/{TWO}-{CAT}"}}'))
    with pytest.raises(InvalidJob, match="with another payload"):
        require_same(finished, NewJob("tag", f'{{"path": "/x/{TWO}-{DOG}"}}'))


@pytest.fixture
def finished() -> Job:
    nothing = dict.fromkeys(Job.__slots__)
    given = {"id": 1, "type": "tag", "payload": {"path": f"/x/{ONE}-{CAT}"}, "status": Status.DONE}
    return Job(**(nothing | given))  # type: ignore[arg-type] - the rest does not matter
