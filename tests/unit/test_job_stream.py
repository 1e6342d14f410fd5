"""What somebody who follows a job is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.domain.errors import InvalidJob
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.job_stream import (
    MAX_CHUNK_BYTES,
    Chunk,
    Follower,
    FollowEvent,
    encoded_chunk,
    position_of,
)


def state(status: Status = Status.RUNNING, token: int = 1, attempt: int = 1, **more: Any) -> JobEvent:
    return JobEvent(7, status, more.pop("progress", None), more.pop("text", None), attempt=attempt, token=token, **more)


def chunks(*numbers: int, token: int = 1, attempt: int = 1) -> list[Chunk]:
    return [Chunk(7, token, attempt, number, b'"x"') for number in numbers]


def told(found: list[FollowEvent]) -> list[tuple[str, str, Any]]:
    """Each event in short: where a stream goes on behind it, its name, and what it says first of all."""
    first = {"job": "status", "end": "status", "attempt": "attempt", "chunk": "number", "lost": "chunks"}
    return [(str(event.at), event.name, json.loads(event.as_sent(show=True))[first[event.name]]) for event in found]


def test_a_job_is_followed_from_its_wait_to_its_end() -> None:
    follower = Follower()

    assert told(follower.news(state(Status.PENDING, 0, 0), [])) == [("0.0", "job", "pending")]
    assert told(follower.news(state(), [])) == [("1.0", "attempt", 1), ("1.0", "job", "running")]
    assert told(follower.news(state(), chunks(1, 2))) == [("1.1", "chunk", 1), ("1.2", "chunk", 2)]
    assert follower.news(state(), chunks(1, 2)) == []
    assert told(follower.news(state(progress=0.5), chunks(3))) == [("1.3", "chunk", 3), ("1.3", "job", "running")]
    assert not follower.ended
    last = follower.news(state(Status.DONE, result={"n": 1}), chunks(4))
    assert told(last) == [("1.4", "chunk", 4), ("1.4", "end", "done")]
    assert follower.ended
    assert json.loads(last[-1].as_sent(show=True)) == {
        "id": 7,
        "status": "done",
        "attempt": 1,
        "progress": None,
        "progress_text": None,
        "result": {"n": 1},
        "redacted": False,
        "error": None,
    }


def test_a_retry_begins_a_new_attempt_behind_all_that_the_one_before_has_emitted() -> None:
    follower = Follower()
    follower.news(state(), chunks(1))
    # A failed run leaves a token behind that no run has.
    assert told(follower.news(state(Status.PENDING, 2), chunks(2))) == [("1.2", "chunk", 2), ("1.2", "job", "pending")]
    found = follower.news(state(token=3, attempt=2), [*chunks(3), *chunks(1, token=3, attempt=2)])  # the third is stale
    assert told(found) == [("3.0", "attempt", 2), ("3.0", "job", "running"), ("3.1", "chunk", 1)]


def test_a_retry_that_was_quicker_than_the_look_loses_nothing_either() -> None:
    follower = Follower()
    follower.news(state(), chunks(1))
    both = [*chunks(2), *chunks(1, token=3, attempt=2)]
    found = told(follower.news(state(token=3, attempt=2), both))
    assert [name for _, name, _ in found] == ["chunk", "attempt", "job", "chunk"]


def test_a_run_that_has_lost_its_claim_reaches_nobody() -> None:
    follower = Follower()
    follower.news(state(token=3, attempt=2), [])
    assert follower.news(state(token=3, attempt=2), chunks(5)) == []


def test_chunks_that_come_before_the_news_of_their_run_wait_for_it() -> None:
    follower = Follower()
    waiting = state(Status.PENDING, 0, 0)
    assert told(follower.news(waiting, chunks(1))) == [("0.0", "job", "pending")]
    assert [name for _, name, _ in told(follower.news(state(), chunks(1)))] == ["attempt", "job", "chunk"]


@pytest.mark.parametrize(
    ("last_id", "now", "there", "expected"),
    [
        pytest.param("", state(), chunks(1, 2), "0 attempt 1, 0 job running, 1 chunk 1, 2 chunk 2", id="later"),
        pytest.param(
            "",
            state(Status.DONE, 1, 2),
            chunks(4, 5),
            "0 attempt 2, 3 lost 3, 4 chunk 4, 5 chunk 5, 5 end done",
            id="after the end: what is left of it",
        ),
        pytest.param("1.2", state(), chunks(3), "3 chunk 3, 3 job running", id="behind an id"),
        pytest.param("1.1", state(), chunks(2, 3), "2 chunk 2, 3 chunk 3, 3 job running", id="behind another"),
        pytest.param("1.3", state(), [], "3 job running", id="behind the last"),
        pytest.param("0.5", state(), chunks(1), "0 attempt 1, 0 job running, 1 chunk 1", id="in another attempt"),
        pytest.param("", state(), chunks(5, token=3), "0 attempt 1, 0 job running", id="of a run without its claim"),
    ],
)
def test_whoever_comes_or_returns_gets_what_is_there_behind_the_last_id(
    last_id: str, now: JobEvent, there: list[Chunk], expected: str
) -> None:
    found = told(Follower(position_of(last_id)).news(now, there))
    assert ", ".join(f"{at.removeprefix('1.')} {name} {first}" for at, name, first in found) == expected


def test_a_job_that_was_cancelled_before_its_first_run_only_ends() -> None:
    assert told(Follower().news(state(Status.CANCELLED, 1, 0), [])) == [("0.0", "end", "cancelled")]


@pytest.mark.parametrize("last_id", ["", "1", "a.b", "1.2.3", "-1.2", "1" * 19 + ".0"])
def test_other_ids_name_no_position(last_id: str) -> None:
    assert position_of(last_id) is None


def test_what_may_not_be_seen_is_not_sent() -> None:
    end = Follower().news(state(Status.DONE, result="secret"), [])[-1]
    assert json.loads(end.as_sent(show=False))["result"] is None
    assert json.loads(end.as_sent(show=False))["redacted"] is True
    chunk = FollowEvent("chunk", state(), 1, 4, data=b'"secret"')
    assert json.loads(chunk.as_sent(show=True)) == {"attempt": 1, "number": 4, "chunk": "secret"}
    assert json.loads(chunk.as_sent(show=False)) == {"attempt": 1, "number": 4, "chunk": None, "redacted": True}


def test_a_run_that_cannot_be_read_here_says_so() -> None:
    found = Follower().news(state(), [], elsewhere=True)
    assert [(event.name, event.elsewhere) for event in found] == [("attempt", True), ("job", False)]
    assert json.loads(found[0].as_sent(show=True)) == {"attempt": 1, "elsewhere": True}


def test_a_program_gets_values_of_its_own() -> None:
    now, there = state(), [Chunk(7, 1, 1, number, b'{"n": [1]}') for number in (1, 4)]
    found = Follower().news(now, there)
    assert all(event.job is now for event in found)
    assert [(event.name, event.attempt, event.number, event.chunk, event.lost) for event in found] == [
        ("attempt", 1, 0, None, 0),
        ("job", 1, 0, None, 0),
        ("chunk", 1, 1, {"n": [1]}, 0),
        ("lost", 1, 0, None, 2),
        ("chunk", 1, 4, {"n": [1]}, 0),
    ]
    assert [event.as_json() for event in found] == [json.loads(event.as_sent(show=True)) for event in found]
    assert found[-1].as_json() == {"attempt": 1, "number": 4, "chunk": {"n": [1]}}
    found[2].chunk["n"].append(2)
    assert found[2].chunk == {"n": [1]}


@pytest.mark.parametrize("data", [encoded_chunk("a\nb\r\u2028 \u00e9"), b"[\r\n1,\n2]"])
def test_each_event_is_one_line_whatever_is_in_it(data: bytes) -> None:
    text = FollowEvent("chunk", state(), 1, 1, data=data).as_sent(show=True)
    assert "\n" not in text
    assert "\r" not in text
    assert json.loads(text)["chunk"] == json.loads(data)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{", b"", b"[" * 5000, b"NaN1", b"NaN"])
def test_what_is_not_json_is_no_chunk(data: bytes) -> None:
    assert not Chunk(7, 1, 1, 1, data).is_valid()


@pytest.mark.parametrize("chunk", ["token", "", None, 1.5, {"a": [1, {"b": "c"}]}, "x" * (MAX_CHUNK_BYTES - 2)])
def test_a_chunk_may_be_any_small_json(chunk: object) -> None:
    assert json.loads(encoded_chunk(chunk)) == chunk


@pytest.mark.parametrize("chunk", [b"bytes", float("nan"), "\ud800", {1, 2}, "x" * MAX_CHUNK_BYTES, "\u00e9" * 9000])
def test_anything_else_is_refused(chunk: object) -> None:
    with pytest.raises(InvalidJob, match=r"^chunk: "):
        encoded_chunk(chunk)
