"""Capabilities are compared as sets. Requirements that cannot be met are skipped, and none that can be is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.domain.job import covers, next_candidate, normalise

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


WORDS = ["a", "aa", "ab", "b", "gpu", "gpux", "gp", "x"]
SEPARATORS = [" ", "  ", "\t", "\u00a0", "\u2003"]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SEPARATORS)), max_size=4).map(
    lambda pairs: "".join(word + separator for word, separator in pairs).rstrip(" ")
)


@settings(max_examples=500, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=30), st.sets(st.sampled_from(WORDS), max_size=4))
def test_a_walk_that_skips_finds_all_that_is_covered(texts: list[str], have: set[str]) -> None:
    capabilities = " ".join(sorted(have))
    kinds = sorted(set(texts), key=str.encode)
    found, at = [], "\0"
    while (kind := next((each for each in kinds if each.encode() >= at.encode()), None)) is not None:
        if covers(capabilities, kind):
            found.append(kind)
        at = next_candidate(capabilities, kind)
        assert at.encode() > kind.encode()
    assert found == [kind for kind in kinds if kind and covers(capabilities, kind)]


@pytest.mark.fault(61)
def test_of_a_thousand_that_are_not_covered_few_are_looked_at() -> None:
    kinds = sorted(
        [f"cap{number:05}" for number in range(1000)] + [f"gpu x{number}" for number in range(1000)] + ["gpu"]
    )
    looks, at = 0, "\0"
    while (kind := next((each for each in kinds if each >= at), None)) is not None:
        looks, at = looks + 1, next_candidate("gpu large", kind)
    assert looks < 10
