"""Messages of failures that differ only in what varies have one fingerprint; others have not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.text import fingerprint


@pytest.mark.parametrize(
    "messages",
    [
        ("timed out after 30 s", "timed out after 120.5 s"),
        ("ValueError: no such picture 7", "ValueError: no such picture 1234567"),
        ("cannot open 'a.jpg'", "cannot open 'b c.png'", "cannot open ''"),
        ('KeyError: "width"', 'KeyError: "it’s"'),
        ("FileNotFoundError: /srv/a/1.jpg", "FileNotFoundError: /srv/b.jpg", "FileNotFoundError: ./b/c.jpg"),
        ("cannot read C:\\a\\b.jpg", "cannot read D:\\c.jpg"),
        ("<Picture object at 0x7f00aa> is broken", "<Picture object at 0xDEAD01> is broken"),
        ("job 0b06e87e-5e9d-4b0c-8e6b-1c2d3e4f5a6b is gone", "job 9b06e87e-0e9d-4b0c-8e6b-1c2d3e4f5a6c is gone"),
        ("no object deadbeef01", "no object 01c0ffee99aa"),
        ("GET https://a.example/x?y=1 answered 500", "GET http://b.example/ answered 503"),
        ("at 12:30:01 on 2026-11-21", "at 1:02:03 on 2025-01-02"),
        ("got  -5\nitems", "got 17 items"),
    ],
)
def test_what_varies_makes_no_difference(messages: tuple[str, ...]) -> None:
    assert len({fingerprint(message) for message in messages}) == 1, [fingerprint(message) for message in messages]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: no such picture", "KeyError: no such picture"),
        ("cannot open 'a'", "cannot close 'a'"),
        ("it can't be opened", "it can't be closed, it isn't there"),
        ("no such facade", "no such decade"),
        ("", "x"),
        ("killed by SIGKILL", "killed by SIGSEGV"),
        ("TypeError: a and/or b", "TypeError: a xor b"),
    ],
)
def test_what_matters_makes_a_difference(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


@given(st.text())
def test_any_text_has_a_short_one_that_is_its_own(message: str) -> None:
    short = fingerprint(message)
    assert len(short) <= 300
    assert "\n" not in short


@pytest.mark.parametrize("filler", ["'", "/a", "a1", "0x", "://a", '"\\', "1.1", "a.-"])
def test_a_hostile_message_takes_no_time(filler: str) -> None:
    fingerprint(filler * 500_000)  # the test's own time limit tells
