"""Capabilities are compared as sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.job import covers, normalise

words = st.lists(st.sampled_from(["cpu", "gpu", "tag@2", "a", "b"]))


@given(words, words, st.randoms())
def test_a_worker_may_run_what_needs_no_more_than_it_has(has: list[str], needs: list[str], dice: object) -> None:
    shuffled = needs * 2
    dice.shuffle(shuffled)  # type: ignore[attr-defined]

    assert covers(" ".join(has), "  ".join(shuffled)) is (set(needs) <= set(has))


@given(words)
def test_equal_sets_have_equal_texts(needs: list[str]) -> None:
    assert normalise(needs) == normalise(reversed(needs + needs))
    assert normalise(needs).split() == sorted(set(needs))
