"""What a run says is kept within bounds: all of a little, the beginning and the end of a lot."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.worker.tape import HEAD_BYTES, MOST_BYTES, Tape, tee

LEFT_OUT = re.compile(r"^\[(\d+) bytes left out\]$", re.MULTILINE)


@pytest.fixture
def tape() -> Tape:
    tape = Tape()
    tape.begin()
    return tape


def test_a_little_is_kept_whole(tape: Tape) -> None:
    tape.add(b"one\n")
    tape.line("two – \udcff")

    assert tape.text() == "one\ntwo – \\udcff\n"


def test_who_says_nothing_has_no_text(tape: Tape) -> None:
    assert tape.text() is None


def test_of_a_lot_whole_lines_of_the_beginning_and_the_end_are_kept(tape: Tape) -> None:
    lines = [f"line {number}" for number in range(200_000)]
    for line in lines:
        tape.line(line)

    text = tape.text()

    assert text is not None
    assert MOST_BYTES - 100 < len(text.encode()) < MOST_BYTES + 100
    head, left_out, tail = LEFT_OUT.split(text)
    kept = [*head.splitlines(), *tail.strip().splitlines()]
    assert kept[: len(head.splitlines())] == lines[: len(head.splitlines())]
    assert tail.strip().splitlines() == lines[-len(tail.strip().splitlines()) :]
    assert sum(len(line) + 1 for line in [*lines]) == int(left_out) + sum(len(line) + 1 for line in kept)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 5000)), max_size=12))
def test_nothing_is_missing_that_is_not_counted(parts: list[tuple[bytes, int]]) -> None:
    tape = Tape()
    tape.begin()
    for part, times in parts:
        tape.add(part * times)
    said, text = b"".join(part * times for part, times in parts), tape.text() or ""

    assert "\0" not in text
    found = LEFT_OUT.search(text) if len(said) > MOST_BYTES else None
    if found is None:
        assert len(said) <= MOST_BYTES
        assert text == said.decode("utf-8", "replace").replace("\0", "?").replace("\ufffd", "?")
    else:
        left_out = int(found[1])
        assert len(said) - MOST_BYTES <= left_out < len(said)
        # One byte each at most for what cannot be said, and a line break before the line between.
        assert len(text.encode()) <= len(said) - left_out + len(found[0]) + 2


def test_one_endless_line_keeps_its_beginning_and_its_end(tape: Tape) -> None:
    tape.add(b"<" + b"x" * 1_000_000 + b">\n")

    text = tape.text()

    assert text is not None
    assert text.startswith("<xxx")
    assert text.endswith("xxx>\n")
    assert len(text.partition("\n")[0]) == HEAD_BYTES


def test_between_two_runs_nothing_is_taken_down(tape: Tape) -> None:
    tape.line("mine")
    tape.end()
    tape.line("nobody's")
    assert tape.text() == "mine\n"

    tape.begin()
    assert tape.text() is None
    tape.line("the next one's")
    assert tape.text() == "the next one's\n"


def test_many_threads_may_speak_at_once(tape: Tape) -> None:
    def speak() -> None:
        for _ in range(2000):
            tape.add(b"0123456789")

    threads = [threading.Thread(target=speak) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert tape.size == 4 * 2000 * 10
    assert set(LEFT_OUT.sub("", tape.text() or "").replace("\n", "")) == set("0123456789")


def test_what_is_written_to_a_stream_goes_on_to_where_it_went_and_is_kept(tape: Tape) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", line_buffering=True)
    log = logging.StreamHandler(stream)  # as one that was made when the handler's module was imported
    tee(stream, tape)

    print("printed", 1, file=stream)
    stream.writelines(["lines\n", "of them\n"])
    log.emit(logging.LogRecord("x", logging.INFO, __file__, 1, "logged %s", ("well",), None))
    with pytest.raises(TypeError):
        stream.write(b"no text")  # type: ignore[arg-type]
    tape.end()
    print("later", file=stream)

    kept = "printed 1\nlines\nof them\nlogged well\n"
    assert tape.text() == kept
    assert raw.getvalue().decode() == kept + "later\n"


def test_a_stream_that_cannot_be_heard_is_left_alone(tape: Tape, capsys: pytest.CaptureFixture[str]) -> None:
    class Own:
        __slots__ = ()

        def write(self, text: str) -> int:
            return sys.stdout.write(text)

    tee(Own(), tape)  # type: ignore[arg-type]
    tee(None, tape)
    print("still printed", file=Own())  # type: ignore[call-overload]

    assert capsys.readouterr().out == "still printed\n"
    assert tape.text() is None
