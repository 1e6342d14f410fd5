"""What docs/subprocess.md says to those who write programs is what the worker says and takes."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from supervisor import Queue
from supervisor.config.pool_settings import VISIBLE_DEVICES
from supervisor.domain.enqueueing import OPTIONS
from supervisor.worker.context import Board, Context
from supervisor.worker.environment import INHERITED, REPLIES, REPLY_FD, SINGLE_THREADED, of_program
from supervisor.worker.program import TAIL_BYTES
from supervisor.worker.protocol import CHILD, KINDS, LEVELS, MAX_LINE, VERSION, Conversation, Violation, greeting
from supervisor.worker.subprocess_handler import LET_GO, TERM_GRACE, _message
from tests.docs.markdown import ROOT, named, spans, table
from tests.unit.test_protocol import HELLO, heard, line

PAGE = "docs/subprocess.md"
JOB = _message(Context(Board()), {})


def keys(row: list[str]) -> set[str]:
    """The keys of a message: the names outside the brackets that explain their values."""
    return set(spans(re.sub(r"\([^)]*\)", "", row[1])))


def test_the_messages_of_the_worker_are_listed_with_their_keys() -> None:
    talk = Conversation()
    sent = [greeting("tag", (), {}, None)]
    heard(talk, HELLO)
    sent += [talk.hand_over([JOB], 1.0), talk.cancel(now=True)]
    heard(talk, line(type="result", id=1))
    sent += [talk.hand_over([JOB], 1.0, together=True), talk.bye()]

    said = {message.pop("type"): set(message) for message in map(json.loads, sent)}
    assert said == {spans(row[0])[0]: keys(row) for row in table(PAGE, "messages: worker")}


EXAMPLES = {
    "hello": {"protocol": 1, "capabilities": [], "batches": False},
    "progress": {"id": 1, "fraction": 0.5, "text": "half"},
    "extend": {"id": 1, "seconds": "5m"},
    "emit": {"id": 1, "chunk": "a piece"},
    "log": {"text": "a line", "level": "info", "fields": {}},
    "result": {"id": 1, "value": None, "enqueue": []},
    "error": {
        "id": 1, "message": "no", "traceback": "", "retry": True, "after": "30s", "permanent": False, "kind": "exit",
    },
}  # fmt: skip


@pytest.mark.parametrize("row", table(PAGE, "messages: program"), ids=lambda row: spans(row[0])[0])
def test_a_message_is_taken_as_it_is_listed_and_every_key_of_it_is_looked_at(row: list[str]) -> None:
    kind = spans(row[0])[0]
    assert keys(row) == set(EXAMPLES[kind])

    def outcome(message: dict[str, object]) -> str:
        talk = Conversation()
        if kind != "hello":
            heard(talk, HELLO)
            talk.hand_over([JOB], 1.0)
        try:
            return repr(heard(talk, json.dumps({"type": kind, **message}).encode() + b"\n"))
        except Violation as violation:
            return str(violation)

    good = outcome(EXAMPLES[kind])
    assert not good.startswith("sent")
    assert all(outcome({**EXAMPLES[kind], key: {"no": 1}}) != good for key in EXAMPLES[kind])
    assert outcome({**EXAMPLES[kind], "other": 1}) == good


def test_every_type_of_message_is_listed() -> None:
    assert named(table(PAGE, "messages: program")) == list(EXAMPLES)


def test_the_environment_listed_is_the_environment() -> None:
    listed = named(table(PAGE, "environment"))
    assert set(listed) - {"env"} == {*INHERITED, *SINGLE_THREADED, "PYTHONPATH", REPLY_FD, VISIBLE_DEVICES}
    assert set(of_program({}, device="0")) <= set(listed)


def test_the_figures_of_the_page_are_the_figures() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert (MAX_LINE, TAIL_BYTES, REPLIES, VERSION) == (1 << 20, 8192, 3, 1)
    assert (LET_GO, TERM_GRACE) == (2.0, 1.5)
    for name in (*KINDS, *LEVELS):
        assert f"`{name}`" in text


def test_a_program_enqueues_with_the_options_of_the_queue() -> None:
    parameters = {*inspect.signature(Queue.enqueue).parameters, *OPTIONS}
    assert parameters - {"self", "options", "connection"} == CHILD
