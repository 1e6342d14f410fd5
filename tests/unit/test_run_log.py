"""What a run says is kept within bounds: all of a little, the beginning and the end of a lot."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.system import run_log as run_log_module
from supervisor.system.run_log import HEAD_BYTES, MOST_BYTES, RunLog, behind, printed, said, shared, tee

LEFT_OUT = re.compile(r"^\[(\d+) bytes left out\]$", re.MULTILINE)


@pytest.fixture
def run_log() -> RunLog:
    run_log = RunLog()
    run_log.run = (7, 1)
    return run_log


def test_a_little_is_kept_whole(run_log: RunLog) -> None:
    run_log.add(b"one\n")
    run_log.line("two – \udcff")

    assert run_log.text() == "one\ntwo – \\udcff\n"


def test_of_a_lot_whole_lines_of_the_beginning_and_the_end_are_kept(run_log: RunLog) -> None:
    lines = [f"line {number}" for number in range(200_000)]
    for line in lines:
        run_log.line(line)

    text = run_log.text()

    assert text is not None
    assert MOST_BYTES - 100 < len(text.encode()) < MOST_BYTES + 100
    head, left_out, tail = LEFT_OUT.split(text)
    kept = [*head.splitlines(), *tail.strip().splitlines()]
    assert kept[: len(head.splitlines())] == lines[: len(head.splitlines())]
    assert tail.strip().splitlines() == lines[-len(tail.strip().splitlines()) :]
    assert sum(len(line) + 1 for line in [*lines]) == int(left_out) + sum(len(line) + 1 for line in kept)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 5000)), max_size=12))
def test_nothing_is_missing_that_is_not_counted(parts: list[tuple[bytes, int]]) -> None:
    run_log = RunLog()
    run_log.run = (7, 1)
    for part, times in parts:
        run_log.add(part * times)
    spoken, text = b"".join(part * times for part, times in parts), run_log.text() or ""

    assert "\0" not in text
    found = LEFT_OUT.search(text) if len(spoken) > MOST_BYTES else None
    if found is None:
        assert len(spoken) <= MOST_BYTES
        assert text == spoken.decode("utf-8", "replace").replace("\0", "?").replace("\ufffd", "?")
    else:
        left_out = int(found[1])
        assert len(spoken) - MOST_BYTES <= left_out < len(spoken)
        # One byte each at most for what cannot be said, and a line break before the line between.
        assert len(text.encode()) <= len(spoken) - left_out + len(found[0]) + 2


def test_one_endless_line_keeps_its_beginning_and_its_end(run_log: RunLog) -> None:
    run_log.add(b"<" + b"x" * 1_000_000 + b">\n")

    text = run_log.text()

    assert text is not None
    assert text.startswith("<xxx")
    assert text.endswith("xxx>\n")
    assert len(text.partition("\n")[0]) == HEAD_BYTES


def test_between_two_runs_nothing_is_taken_down(run_log: RunLog) -> None:
    run_log.line("mine")
    run_log.run = None
    run_log.line("nobody's")
    assert run_log.text() == "mine\n"

    run_log.forget()
    run_log.run = (8, 1)
    assert run_log.text() is None
    run_log.line("the next one's")
    assert run_log.text() == "the next one's\n"


def test_many_threads_may_speak_at_once(run_log: RunLog) -> None:
    def speak() -> None:
        for _ in range(2000):
            run_log.add(b"0123456789")

    with ThreadPoolExecutor(4) as threads:
        for speaking in [threads.submit(speak) for _ in range(4)]:
            speaking.result()

    assert run_log.size == 4 * 2000 * 10
    assert set(LEFT_OUT.sub("", run_log.text() or "").replace("\n", "")) == set("0123456789")


def test_what_is_written_to_a_stream_goes_on_to_where_it_went_and_is_kept(run_log: RunLog) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", line_buffering=True)
    log = logging.StreamHandler(stream)  # as one that was made when the handler's module was imported
    tee(stream, run_log)

    print("printed", 1, file=stream)
    stream.writelines(["lines\n", "of them\n"])
    log.emit(logging.LogRecord("x", logging.INFO, __file__, 1, "logged %s", ("well",), None))
    with pytest.raises(TypeError):
        stream.write(b"no text")  # type: ignore[arg-type]
    run_log.run = None
    print("later", file=stream)

    kept = "printed 1\nlines\nof them\nlogged well\n"
    assert run_log.text() == kept
    assert raw.getvalue().decode() == kept + "later\n"


def test_a_stream_that_cannot_be_heard_is_left_alone(run_log: RunLog, capsys: pytest.CaptureFixture[str]) -> None:
    class Own:
        __slots__ = ()

        def write(self, text: str) -> int:
            return sys.stdout.write(text)

    tee(Own(), run_log)  # type: ignore[arg-type]
    tee(None, run_log)
    print("still printed", file=Own())  # type: ignore[call-overload]

    assert capsys.readouterr().out == "still printed\n"
    assert run_log.text() is None


DYING = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from supervisor.system.run_log import RunLog, shared

path, slot, lines = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tape = RunLog(shared(path, slot))
tape.run = (7, 1)
tape.line("another run's")
tape.forget()
tape.run = (8, 2)
for number in range(lines):
    tape.line(f"slot {slot} line {number}")
os.kill(os.getpid(), 9)
"""


def test_what_a_dead_process_had_said_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tapes"
    for slot, lines in ((1, 3), (3, 10_000)):
        arguments = [sys.executable, "-c", DYING, str(path), str(slot), str(lines)]
        died = subprocess.run(arguments, timeout=60, cwd=Path(__file__).parents[2])
        assert died.returncode == -9

    assert said(path, 1, 8, 2) == "slot 1 line 0\nslot 1 line 1\nslot 1 line 2\n"
    much = said(path, 3, 8, 2)
    assert much is not None
    assert much.startswith("slot 3 line 0\n")
    assert LEFT_OUT.search(much)
    assert much.endswith("\nslot 3 line 9999\n")
    assert [said(path, slot, *run) for slot, run in ((1, (7, 1)), (1, (8, 1)), (2, (8, 2)), (9, (8, 2)))] == [None] * 4
    assert path.stat().st_mode & 0o777 == 0o600

    shared(path, 1)
    assert said(path, 1, 8, 2) is None  # a successor's place


def test_where_there_is_no_room_for_it_nothing_is_shared(tmp_path: Path) -> None:
    assert shared(tmp_path / "nowhere" / "tapes", 1) is None
    assert said(tmp_path / "nowhere" / "tapes", 1, 8, 2) is None


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.booleans())
def test_who_follows_a_run_hears_everything_once(steps: list[int], ends: bool) -> None:
    """Each step prints so many lines of up to a kilobyte; the reader looks after it, and finds the rest recorded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run-logs")
        run_log = RunLog(shared(file, 3))
        run_log.run = (7, 1)
        lines: list[str] = []
        heard, end = b"", 0
        for number, step in enumerate(steps):
            for _ in range(step):
                lines.append(f"{len(lines)} é {'x' * (len(lines) * 37 % 1000)}")
                run_log.line(lines[-1])
            if number % 3 or not ends:
                data, end = printed(file, 3, 7, 1, end)
                heard += data
        heard += behind(run_log.text() or "", end).encode()

    assert heard.decode().splitlines() == lines


def test_who_follows_too_slowly_is_told_how_much_is_missing(tmp_path: Path) -> None:
    run_log = RunLog(shared(tmp_path / "run-logs", 1))
    run_log.run = (7, 1)
    first = b"first line\n"
    run_log.add(first)
    data, end = printed(tmp_path / "run-logs", 1, 7, 1, 0)
    assert (data, end) == (first, len(first))
    for number in range(20_000):
        run_log.line(f"line {number}")
    total = run_log.size
    recorded = run_log.text() or ""

    later, end = printed(tmp_path / "run-logs", 1, 7, 1, len(first))

    assert end == total
    for text in (later.decode(), behind(recorded, len(first))):
        head, left_out, tail = LEFT_OUT.split(text)
        assert head.startswith("line 0\n")
        assert tail.endswith("line 19999\n")
        assert abs(len(first) + len(head) + int(left_out) + len(tail) - 1 - total) <= 1
    in_the_gap = behind(recorded, total // 2)
    assert LEFT_OUT.match(in_the_gap)
    assert behind(recorded, total - 11) == "line 19999\n"
    assert behind(recorded, total) == ""
    assert printed(tmp_path / "run-logs", 1, 7, 2, 0) == (b"", 0)
    assert printed(tmp_path / "run-logs", 2, 7, 1, 0) == (b"", 0)


def test_what_another_run_may_have_printed_meanwhile_is_not_told_as_that_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = shared(tmp_path / "run-logs", 1)
    assert memory is not None
    log = RunLog(memory)
    log.run = (7, 1)
    log.add(b"one\n")
    region, looks = run_log_module._region, 0

    def ends_in_between(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            log.forget()
            log.run = (8, 1)
            log.add(b"two\n")
        return region(*arguments)

    monkeypatch.setattr(run_log_module, "_region", ends_in_between)
    assert printed(tmp_path / "run-logs", 1, 7, 1, 0) == (b"", 0)
    assert printed(tmp_path / "run-logs", 1, 8, 1, 0) == (b"two\n", 4)
