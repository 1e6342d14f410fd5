"""Events as lines for people, as they are kept with a run."""

from __future__ import annotations

import io
import json
import re

import structlog

from supervisor.telemetry import configure, events, unconfigure


def test_an_event_is_kept_as_a_line_and_goes_to_the_log_as_it_was(stream: io.StringIO) -> None:
    kept: list[str] = []
    log = events(keep=kept.append, job=7, type="tag")
    events(job=7).info("somebody else's")

    log.info("tagging", path="a cat.jpg", name="", count=3, odd="\x1b[31m")
    log.bind(step=2).warning("%s of %s", 1, 2)
    log.debug("below the level")
    try:
        raise ValueError("no picture")
    except ValueError:
        log.exception("went on")

    times = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    assert all(times.match(line) for line in kept)
    first, second, third = (times.sub("T", line) for line in kept)
    assert first == "T info tagging path='a cat.jpg' name='' count=3 odd='\\x1b[31m'"
    assert second == "T warning 1 of 2 step=2"
    assert third.startswith("T error went on\nTraceback (most recent call last):\n")
    assert third.endswith("\nValueError: no picture")
    logged = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in logged] == ["somebody else's", "tagging", "1 of 2", "went on"]
    assert (logged[1]["job"], logged[1]["path"], logged[1]["level"]) == (7, "a cat.jpg", "info")


def test_a_handlers_own_context_is_kept_too(stream: io.StringIO) -> None:
    kept: list[str] = []
    with structlog.contextvars.bound_contextvars(user="ada"):
        events(keep=kept.append, job=7).info("tagging")

    assert kept[0].endswith("Z info tagging user=ada")


def test_in_a_terminal_a_value_is_quoted_once_and_controls_nothing() -> None:
    class Hostile:
        def __repr__(self) -> str:
            return "a\n\x1b[31mb"

    terminal = io.StringIO()
    configure("console", "info", terminal)
    events().info("scaled", why="1 due", pools=["a b"], count=3, text="a\n\x1b[31mb", of=Hostile())
    unconfigure()
    said = terminal.getvalue()
    assert said.endswith("\n")
    assert said.count("\n") == 1
    assert "\x1b[31m" not in said
    for part in ("why='1 due'", "pools=['a b']", "count=3", "text=a\\n\\x1b[31mb", "of=a\\n\\x1b[31mb"):
        assert part in said
