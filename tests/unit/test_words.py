"""Numbers and times as pages write them."""

from __future__ import annotations

import pytest

from supervisor.admin import formatting
from supervisor.domain.text import final_lines, like


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (float("inf"), "–"),
        (-3, "0 ms"),
        (0.0004, "0 ms"),
        (0.32, "320 ms"),
        (0.9996, "1.0 s"),
        (4.21, "4.2 s"),
        (9.97, "10 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3569, "59 min"),
        (3571, "1 h"),
        (12_000, "3 h 20 min"),
        (86_399, "1 d"),
        (100_000, "1 d 4 h"),
        (400 * 86_400, "400 d"),
        (40_000 * 86_400, "40,000 d"),
    ],
)
def test_lengths_of_time(seconds: float | None, text: str) -> None:
    assert formatting.span(seconds) == text


@pytest.mark.parametrize(
    ("ago", "text"),
    [(0.0, "just now"), (0.9, "just now"), (-0.5, "now"), (4.7, "4 s ago"), (130, "2 min ago"), (-200, "in 3 min")],
)
def test_ages(ago: float, text: str) -> None:
    assert formatting.age(1e9, 1e9 + ago) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345, "12,345"), (4.52, "4.5"), (23.87, "23.9"), (0.004, "0.01"), (123.4, "123"), (None, "–")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


def test_sizes_shares_and_counts() -> None:
    assert formatting.size(1.4 * 2**30) == "1.4 GiB"
    assert formatting.percent(0.256) == "26 %"
    assert formatting.percent(7.0) == "100 %"
    assert [formatting.counted(n, "job") for n in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]


@pytest.mark.parametrize("stored", ["yesterday", 1e300, -1e300, float("nan"), None, True, b"\xff"])
def test_times_that_other_programs_stored_are_shown_as_they_are(stored: object) -> None:
    assert formatting.iso(stored) == ""
    assert formatting.absolute(stored) in (str(stored), "–", "\ufffd")


def test_a_long_value_is_cut_and_says_so() -> None:
    assert formatting.pretty({"a": ["b"]}) == '{\n  "a": [\n    "b"\n  ]\n}'
    assert formatting.cut("x" * 60_010).endswith("x\n… 10 more characters")


def test_a_log_is_shown_as_a_terminal_would_in_the_end() -> None:
    assert final_lines(b"10 %\r50 %\r100 %\r\ndone\n\xff\n") == "100 %\ndone\n\ufffd"


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ('["0 3 * * *", null, "Europe/Berlin"]', "0 3 * * * (Europe/Berlin)"),
        ('[null, 300.0, "UTC"]', "every 5 min"),
        ('[null, 5.0, "UTC"]', "every 5 s"),
        ('[null, 2.5, "UTC"]', "every 2.5 s"),
        ("{}", "{}"),
        ("no JSON", "no JSON"),
    ],
)
def test_timings_of_schedules(stored: str, text: str) -> None:
    assert formatting.timing(stored) == text


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("ValueError: cannot open '/srv/a.jpg': truncated file", "ValueError: cannot open"),
        ("ConnectionError: smtp.example.org:587 refused the connection", "refused the connection"),
        ("job 77 took 12.5 s", "took"),
        ("first line\nand a longer second line", "and a longer second line"),
        ("12345", ""),
    ],
)
def test_what_messages_of_a_kind_have_in_common(message: str, part: str) -> None:
    assert formatting.fragment(message) == part
    assert part in message


def test_a_name_is_guessed_only_if_a_letter_or_two_are_wrong() -> None:
    assert like("images.rezise", ["images.delete", "images.resize"]) == "; did you mean images.resize?"
    assert [like(name, ["images.delete", "gap"]) for name in ("images.resize", "tag", "")] == ["", "", ""]
