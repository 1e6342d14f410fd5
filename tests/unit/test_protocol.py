"""The conversation with a program, as plain values: what is in order, what is not, and what anything becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.settlement import MAX_MESSAGE
from supervisor.worker.protocol import (
    MAX_LINE,
    Conversation,
    Message,
    Phase,
    Violation,
)


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


HELLO = line(type="hello", protocol=1)
JOB = {"job_id": 7, "idempotency_key": "epoch-7", "job_type": "tag", "attempt": 1, "payload": {"path": "cat.jpg"}}


def hello(capabilities: frozenset[str] | None = None) -> Message:
    return {"type": "hello", "protocol": 1, "capabilities": capabilities, "batches": False}


def log(text: str, level: str = "info", **fields: Any) -> Message:
    return {"type": "log", "text": text, "level": level, "fields": fields}


def result(value: Any) -> Message:
    return {"type": "result", "index": 0, "value": value, "enqueue": []}


def error(message: str, **more: Any) -> Message:
    found = {"kind": "exception", "permanent": False, "retry": False, "after": None, "traceback": None}
    return {"type": "error", "index": 0, "message": message, **found, **more}


def conversation(phase: Phase) -> Conversation:
    """One that has come so far; in BUSY and after it, job 1 is the latest."""
    talk = Conversation()
    if phase is Phase.GREETING:
        return talk
    talk.hear(HELLO)
    assert talk.next() == hello()
    if phase is Phase.BUSY:
        talk.hand_over([JOB], 60.0)
    return talk


def heard(talk: Conversation, data: bytes) -> list[Message]:
    talk.hear(data)
    events = []
    while (event := talk.next()) is not None:
        events.append(event)
    return events


def broken(talk: Conversation, data: bytes) -> str:
    """What it says when `data` breaks it; from then on it says and hears nothing."""
    with pytest.raises(Violation) as caught:
        heard(talk, data)
    assert talk.phase is Phase.CLOSED
    assert heard(talk, line(type="result", id=1)) == []
    return str(caught.value)


def test_a_job_goes_out_and_comes_back() -> None:
    talk = conversation(Phase.IDLE)

    assert json.loads(talk.hand_over([JOB], 60.0)) == {"type": "job", "id": 1, "timeout": 60.0, **JOB}
    assert heard(
        talk,
        line(type="progress", id=1, fraction=0.5, text="half")
        + line(type="extend", id=1, seconds="5m")
        + line(type="log", level="warning", text="slow", fields={"ms": 3})
        + line(type="result", id=1, value={"tags": []}),
    ) == [
        {"type": "progress", "index": 0, "fraction": 0.5, "text": "half"},
        {"type": "extend", "index": 0, "seconds": 300.0},
        log("slow", "warning", ms=3),
        result({"tags": []}),
    ]
    assert talk.phase is Phase.IDLE
    assert json.loads(talk.hand_over([JOB], 60.0))["id"] == 2


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"message": "no"}, error("no")),
        ({}, error("the program gave no reason")),
        ({"message": "no", "permanent": True}, error("no", permanent=True)),
        ({"message": "no", "retry": True}, error("no", retry=True)),
        ({"message": "no", "after": "30s"}, error("no", after=30.0)),
        ({"message": "no", "after": 30, "retry": True}, error("no", retry=True, after=30.0)),
        ({"message": "no", "kind": "memory", "traceback": "at"}, error("no", kind="memory", traceback="at")),
        ({"message": "no", "kind": "crash"}, error("no")),
        ({"message": "half a pair: \ud800"}, error("half a pair: \\ud800")),
        ({"message": "Odd: " + "x" * 5000}, error(f"Odd: {'x' * 495} … {'x' * (MAX_MESSAGE - 503)}")),
    ],
)
def test_an_error_says_whether_to_try_again(message: dict[str, Any], word: Message) -> None:
    assert heard(conversation(Phase.BUSY), line(type="error", id=1, **message)) == [word]


def test_a_program_may_say_what_it_can_do() -> None:
    talk = conversation(Phase.GREETING)

    assert heard(talk, line(type="hello", protocol=1, capabilities=["gpu", "tag@2"])) == [
        hello(frozenset({"gpu", "tag@2"}))
    ]


def test_it_may_log_at_any_time_and_nothing_else_between_jobs() -> None:
    assert heard(conversation(Phase.GREETING), line(type="log", text="loading")) == [log("loading")]
    assert heard(conversation(Phase.IDLE), line(type="log", text="idle")) == [log("idle")]


BUSY = [
    (b"hello\n", "a line that is not valid JSON: 'hello'"),
    (b"\n", "a line that is not valid JSON: ''"),
    (b"[1]\n", "a line that is not a JSON object: [1]"),
    (b'{"type": "result", "id": 1, "value": NaN}\n', 'a line that is not valid JSON: \'{"type"'),
    (b"\xff\xfe\n", "a line that is not valid UTF-8: b'\\xff\\xfe'"),
    (b"[" * 100_000 + b"\n", "a line that is not valid JSON: '[[["),
    (b"x" * (MAX_LINE + 1), "a line of more than 1048576 bytes"),
    (b" " * MAX_LINE + b" \n", "a line of more than 1048576 bytes"),
    (line(), "a message of an unknown type, None"),
    (line(type="bye"), "a message of an unknown type, 'bye'"),
    (line(type=["result"]), "a message of an unknown type, ['result']"),
    (HELLO, "a second hello"),
    (line(type="result", value=1), "a result with an invalid id, None"),
    (line(type="result", id=2), "a result with an invalid id, 2"),
    (line(type="result", id=0), "a result with an invalid id, 0"),
    (line(type="result", id=True), "a result with an invalid id, True"),
    (line(type="result", id="1"), "a result with an invalid id, '1'"),
    (line(type="result", id=1.0), "a result with an invalid id, 1.0"),
    (line(type="result", id=1, enqueue={}), "a result with an invalid enqueue: {} is not a list"),
    (
        line(type="result", id=1, enqueue=[{"payload": 1}]),
        "a result with an invalid enqueue: it has a job without",
    ),
    (
        line(type="result", id=1, enqueue=[{"type": "a", "connection": 1}]),
        "a result with an invalid enqueue: it has a job",
    ),
    (line(type="error", id=1, message=3), "an error with an invalid message: 3 is not a text"),
    (line(type="error", id=1, permanent=1), "an error with an invalid permanent: 1 is not true or false"),
    (line(type="error", id=1, after="soon"), "an error with an invalid after: 'soon' is not a duration"),
    (line(type="progress", id=1, fraction="0.5"), "a progress with an invalid fraction: '0.5' is not a number"),
    (line(type="progress", id=1, fraction=1, text=[]), "a progress with an invalid text: [] is not a text"),
    (line(type="extend", id=1, seconds=-1), "an extend with an invalid seconds: -1 is not a duration"),
    (line(type="extend", id=1), "an extend with an invalid seconds: None is not a duration"),
    (line(type="log", level="loud"), "a log with an invalid level: 'loud'; it must be debug or info"),
    (line(type="log", fields=[]), "a log with an invalid fields: [] is not an object"),
]


@pytest.mark.parametrize(("data", "what"), BUSY, ids=[what[:30] for _, what in BUSY])
def test_what_is_out_of_order_during_a_job_breaks_the_conversation(data: bytes, what: str) -> None:
    assert broken(conversation(Phase.BUSY), data).startswith(f"sent {what}")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (line(type="hello"), "a hello with an invalid protocol: None; it must be 1"),
        (line(type="hello", protocol=2), "a hello with an invalid protocol: 2; it must be 1"),
        (
            line(type="hello", protocol=1, capabilities="gpu"),
            "a hello with an invalid capabilities: 'gpu' is not a list",
        ),
        (line(type="result", id=1), "a result before its hello"),
    ],
)
def test_what_is_out_of_order_at_the_start_breaks_it(data: bytes, what: str) -> None:
    assert broken(conversation(Phase.GREETING), data) == f"sent {what}"


def test_a_late_word_is_told_from_a_wrong_one() -> None:
    talk = conversation(Phase.BUSY)
    assert heard(talk, line(type="result", id=1)) == [result(None)]
    talk.hand_over([JOB], 60.0)

    assert broken(talk, line(type="error", id=1)) == "sent an error with an invalid id, 1"


def test_what_follows_a_last_word_cannot_undo_it() -> None:
    talk = conversation(Phase.BUSY)
    talk.hear(line(type="result", id=1, value=3) + b"garbage\n")

    assert talk.next() == result(3)
    with pytest.raises(Violation):
        talk.next()


def test_after_bye_nothing_counts() -> None:
    talk = conversation(Phase.IDLE)
    assert json.loads(talk.bye()) == {"type": "bye"}

    assert heard(talk, b"x" * (2 * MAX_LINE)) == []


def test_a_request_holds_only_what_every_language_reads() -> None:
    talk = conversation(Phase.IDLE)

    request = talk.hand_over([{**JOB, "payload": {"text": "é\u2028\ud800"}}], 60.0)
    assert request.isascii()
    assert request.count(b"\n") == 1
    assert json.loads(request)["payload"] == {"text": "é\u2028\ud800"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("payload", [float("nan"), nested(500_000)])
def test_a_payload_that_json_cannot_say_goes_nowhere(payload: Any) -> None:
    talk = conversation(Phase.IDLE)

    with pytest.raises(ValueError):  # noqa: PT011 - whatever the reason is, it is shown
        talk.hand_over([{**JOB, "payload": payload}], 60.0)
    assert talk.phase is Phase.IDLE


# Anything at all

WORDS = st.sampled_from(["hello", "result", "error", "progress", "extend", "log", "bye", "job", "cancel"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["id", "protocol", "capabilities", "fraction", "text", "seconds", "level", "fields", "value", "enqueue"]
KEYS += ["message", "kind", "permanent", "retry", "after", "traceback"]
MESSAGES = st.builds(
    lambda kind, number, rest: json.dumps({**rest, "type": kind, "id": number}).encode() + b"\n",
    WORDS,
    st.sampled_from([1, 1, 1, 0, 2, None]),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
)
GOOD = st.sampled_from(
    [
        line(type="progress", id=1, fraction=0.5),
        line(type="result", id=1, value=1),
        line(type="error", id=1, message="no"),
        line(type="log", text="a line"),
    ]
)
CHATTER = st.lists(GOOD | MESSAGES | st.binary(max_size=20) | st.just(b"\n"), max_size=8).map(b"".join)


def outcomes(data: bytes, sizes: list[int], phase: Phase) -> tuple[list[Message], str, Phase]:
    """Every event and the violation, if `data` comes in pieces of these sizes."""
    talk, events, end = conversation(phase), [], ""
    at = 0
    try:
        for size in [*sizes, len(data)]:
            talk.hear(data[at : at + size])
            at += size
            while (event := talk.next()) is not None:
                events.append(event)
                assert talk.phase is Phase.BUSY or event["type"] not in ("progress", "extend")
    except Violation as violation:
        end = str(violation)
    return events, end, talk.phase


@given(CHATTER, st.lists(st.integers(1, 30), max_size=10), st.sampled_from([Phase.GREETING, Phase.IDLE, Phase.BUSY]))
def test_whatever_a_program_sends_a_job_gets_at_most_one_last_word(data: bytes, sizes: list[int], phase: Phase) -> None:
    events, end, last = outcomes(data, sizes, phase)

    words = [event for event in events if event["type"] in ("result", "error")]
    assert len(words) <= (phase is Phase.BUSY)
    assert bool(end) is (last is Phase.CLOSED)
    assert not end or (end.startswith("sent a") and end.isprintable())
    # How the bytes are cut makes no difference.
    assert repr((events, end, last)) == repr(outcomes(data, [], phase))
