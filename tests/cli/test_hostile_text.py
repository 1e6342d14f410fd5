"""Whatever stands in the rows, the command line says it in lines of its own making."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import telemetry
from supervisor.domain.text import clean, clean_lines
from tests.hostile import FORGED, TEXT, fill

from .conftest import Run, execute


def harmless(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
        assert not line.startswith(FORGED), line


@pytest.fixture(autouse=True)
def _structlog_as_before() -> Iterator[None]:
    yield
    telemetry.unconfigure()


@pytest.fixture
def filled(database: Path) -> list[int]:
    fill(database)
    return [row[0] for row in execute(database, "SELECT id FROM jobs")]


@pytest.mark.fault(76)
def test_no_text_of_a_row_begins_a_line_or_commands_the_terminal(cli: Run, filled: list[int]) -> None:
    commands = [["status"], ["jobs", "list", "--limit", "500"], ["doctor"]]
    commands += [[*words, str(job)] for job in filled for words in (["jobs", "show"], ["logs"])]
    commands += [["jobs", "retry", str(filled[2])], ["jobs", "list", "--type", TEXT.replace("\0", "")]]
    for command in commands:
        ran = cli(*command)
        assert "unexpected" not in ran.err, (command, ran.err)
        harmless(ran.out)
        harmless(ran.err)


@pytest.mark.fault(76)
def test_json_tells_of_every_row(cli: Run, filled: list[int]) -> None:
    assert len(cli("jobs", "list", "--limit", "500", "--json").document) == len(filled)
    assert cli("status", "--json").document["jobs"]["pending"]
    for job in filled:
        assert cli("jobs", "show", job, "--json").document["id"] == job


@pytest.mark.fault(76)
def test_what_a_command_is_given_is_said_back_harmlessly(cli: Run, database: Path) -> None:
    for command in (["pause", TEXT], ["scale", TEXT, "1"], ["enqueue", TEXT], ["jobs", "list", "--type", TEXT]):
        ran = cli(*command)
        harmless(ran.out)
        harmless(ran.err)


@pytest.mark.fault(76)
def test_an_event_on_the_console_is_one_line_whatever_its_fields_hold() -> None:
    stream = io.StringIO()
    telemetry.configure("console", stream=stream)
    log = telemetry.events(process="supervisor")
    log.info(TEXT, problem=TEXT, **{TEXT: TEXT, "more": {"a": TEXT}, "raw": b"\x1b[2J", "said": "x\rjob=7"})
    assert stream.getvalue().count("\n") == 1
    harmless(stream.getvalue())

    try:
        raise ValueError(TEXT)
    except ValueError as error:
        log.error("request_failed", exc_info=error)

    harmless(stream.getvalue())
    assert "ValueError" in stream.getvalue()


def test_an_event_of_a_failure_never_tells_what_the_variables_held() -> None:
    stream = io.StringIO()
    telemetry.configure("console", stream=stream)

    def fail(payload: str) -> None:
        raise ValueError("no")

    try:
        fail("the secret payload")
    except ValueError as error:
        telemetry.events().error("failed", exc_info=error)

    assert "secret" not in stream.getvalue().replace('fail("the secret payload")', "")


def test_long_texts_are_clipped_and_say_so() -> None:
    assert clean("x" * 1000, limit=10) == "xxxxxxxxxx… 990 more characters"
    assert clean_lines("a\nb\n" + "c" * 20, limit=10) == "  … 14 characters before\n  cccccccccc"
    assert len(clean(b"\xff" * 1_000_000, limit=100)) < 1000
