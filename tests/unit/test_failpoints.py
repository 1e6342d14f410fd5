"""What a value of SUPERVISOR_FAILPOINTS means, and that a mistake in it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.system import failpoints
from supervisor.system.failpoints import VARIABLE, parse, verify


def test_each_point_has_a_role_a_place_an_action_and_a_number() -> None:
    first, second = parse("worker:settle_done.committed=kill@3; held_by=stop ;")

    assert (first.role, first.place, first.signal, first.number) == ("worker", "settle_done.committed", 9, 3)
    assert (second.role, second.place, second.signal.name, second.number) == ("", "held_by", "SIGSTOP", 1)
    assert first.once is None


def test_once_holds_for_every_point(tmp_path: Path) -> None:
    assert [point.once for point in parse(f"a=kill;once={tmp_path};b=stop")] == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("settle_done", "no fail-point"),
        ("=kill", "no fail-point"),
        ("worker:=kill", "no fail-point"),
        ("boss:settle_done=kill", "'boss' is no role"),
        ("settle_done=explode", "no action; write kill or stop"),
        ("settle_done=kill@", "no action"),
        ("settle_done=kill@0", "no action"),
        ("settle_done=kill@often", "no action"),
        ("settle_done=kill;once=/no/such/folder", "no folder '/no/such/folder'"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    failpoints._armed.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    failpoints._armed.cache_clear()


def test_a_misspelt_place_is_refused_with_the_one_that_was_meant(asked: pytest.MonkeyPatch) -> None:
    asked.setenv(VARIABLE, "worker:settle_doen=kill")

    with pytest.raises(ValueError, match=f"{VARIABLE}: there is no place 'settle_doen'; is it 'settle_done'?"):
        verify(["settle_done"])


def test_places_of_the_store_and_our_own_are_known(asked: pytest.MonkeyPatch) -> None:
    asked.setenv(VARIABLE, "settle_done=kill@9;fork_worker.child=kill;set_up=stop")

    verify(["settle_done"])


def test_without_the_variable_reaching_a_place_does_nothing(asked: pytest.MonkeyPatch) -> None:
    asked.delenv(VARIABLE, raising=False)

    failpoints.reach("set_up")
