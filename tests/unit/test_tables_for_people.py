"""Tables for people: every column lines up, whatever the width of the terminal and of the characters."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from supervisor.cli.output import heading, table

TEXT = st.text(st.sampled_from("ab -漢é\u0301🙂\n\x1b"), max_size=30)


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("COLUMNS", "30")
    return monkeypatch


def test_columns_line_up_and_numbers_stand_to_the_right(width: object) -> None:
    assert table(("id>", "type", "why"), [(1, "tag", "none"), (10, "漢字", "x" * 30)]).split("\n") == [
        "ID  TYPE  WHY",
        " 1  tag   none",
        "10  漢字  " + "x" * 19 + "…",
    ]


def test_the_last_column_is_wrapped_at_spaces_and_a_longer_word_is_divided(width: object) -> None:
    assert table(("field", "value"), [("payload", "some  words and " + "x" * 30)], wrap=True).split("\n") == [
        "FIELD    VALUE",
        "payload  some  words and xxxxx",
        "         xxxxxxxxxxxxxxxxxxxxx",
        "         xxxx",
    ]


def test_in_a_narrow_terminal_the_widest_columns_are_cut(width: object) -> None:
    assert table(("name", "state", "why"), [("x" * 40, "idle", "many words here")]).split("\n") == [
        "NAME       STATE  WHY",
        "xxxxxxxx…  idle   many words …",
    ]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=4), columns=st.integers(20, 60), wrap=st.booleans())
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], columns: int, wrap: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        lines = table(("a", "b>", "c"), rows, wrap=wrap).split("\n")

    assert max(map(cell_len, lines)) <= columns
    assert len(lines) >= len(rows) + 1
    assert all(line.isprintable() for line in lines)


def test_wrapping_loses_no_word(width: object) -> None:
    words = [f"word{number}" for number in range(50)]
    lines = table(("a", "b"), [("x", " ".join(words))], wrap=True).split("\n")

    assert " ".join(lines[1:]).split() == ["x", *words]


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert table(("a", "b"), [("done", "x")]) == "A     B\ndone  x"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert table(("a", "b"), [("done", "x")]) == ("\x1b[1mA\x1b[0m     \x1b[1mB\x1b[0m\n\x1b[32mdone\x1b[0m  x")
    assert heading("Pools") == "\n\x1b[1mPools\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert table(("a", "b"), [("done", "x")]).endswith("\ndone  x")
    monkeypatch.setenv("TERM", "dumb")
    assert heading("Pools") == "\nPools"
