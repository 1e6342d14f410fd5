"""What a value of SUPERVISOR_FAILPOINTS means, and that a mistake in it is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.system import failpoints
from supervisor.system.channel import Channel
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
        ("settle_done", "not a fail-point"),
        ("=kill", "not a fail-point"),
        ("worker:=kill", "not a fail-point"),
        ("boss:settle_done=kill", "'boss' is not a role"),
        ("settle_done=explode", "not an action; write kill, stop or fail:KIND"),
        ("settle_done=kill@", "not an action"),
        ("settle_done=kill@0", "not an action"),
        ("settle_done=kill@often", "not an action"),
        ("settle_done=fail", "not an action"),
        ("settle_done=fail:", "not an action"),
        ("settle_done=fail:busy%2", "not an action"),
        ("settle_done=fail:busy*0", "not an action"),
        ("settle_done=fail:busy@2%0.5", "not an action"),
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

    with pytest.raises(ValueError, match=f"{VARIABLE}: there is no place 'settle_doen'; did you mean 'settle_done'?"):
        verify(["settle_done"])


def test_places_of_the_store_and_our_own_are_known(asked: pytest.MonkeyPatch) -> None:
    asked.setenv(VARIABLE, "settle_done=kill@9;fork_worker.child=kill;set_up=stop")

    verify(["settle_done"])


def test_without_the_variable_reaching_a_place_does_nothing(asked: pytest.MonkeyPatch) -> None:
    asked.delenv(VARIABLE, raising=False)

    failpoints.reach("set_up")


def reached(place: str, times: int) -> list[bool]:
    """At which of so many times of passing it fails."""
    failed = []
    for _ in range(times):
        try:
            failpoints.reach(place)
        except OSError:
            failed.append(True)
        else:
            failed.append(False)
    return failed


@pytest.mark.parametrize(
    ("when", "failed"),
    [
        ("", [True, False, False, False]),
        ("@3", [False, False, True, False]),
        ("*2", [True, True, False, False]),
        ("@2*2", [False, True, True, False]),
        ("%1", [True, True, True, True]),
    ],
)
def test_a_place_fails_at_its_times_of_passing(asked: pytest.MonkeyPatch, when: str, failed: list[bool]) -> None:
    asked.setenv(VARIABLE, f"set_up=fail:EAGAIN{when}")
    assert reached("set_up", 4) == failed


def test_what_fails_by_chance_fails_about_that_often_and_the_same_way_for_a_seed(asked: pytest.MonkeyPatch) -> None:
    seen = []
    for seed in (1, 1, 2):
        asked.setenv(VARIABLE, f"set_up=fail:EIO%0.25;seed={seed}")
        failpoints._armed.cache_clear()
        seen.append(reached("set_up", 2000))
    assert seen[0] == seen[1] != seen[2]
    assert 400 < sum(seen[0]) < 600


def test_of_several_processes_one_alone_goes_through_a_point_with_once(
    asked: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked.setenv(VARIABLE, f"set_up=fail:EIO*2;once={tmp_path}")
    assert reached("set_up", 3) == [True, True, False]
    failpoints.become("program")  # as another process would: its passing is counted from the beginning
    assert reached("set_up", 3) == [False, False, False]


def test_a_pattern_stands_for_many_places_and_meets_only_those_that_can_fail_so(asked: pytest.MonkeyPatch) -> None:
    asked.setenv(VARIABLE, "*=fail:busy*9;fork_*=fail:EAGAIN*9")
    verify(["settle_done"], ["busy"])
    assert reached("set_up", 1) == [False]
    assert reached("fork_worker.before", 1) == [True]
    with pytest.raises(ZeroDivisionError):
        failpoints.reach("settle_done", {"busy": ZeroDivisionError()}.get)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("settle_done=fail:EAGAIN", "'settle_done' cannot fail with 'EAGAIN'"),
        ("set_up=fail:busy", "'set_up' cannot fail with 'busy'"),
        ("set_up=fail:ENOSUCH", "'set_up' cannot fail with 'ENOSUCH'"),
        ("channel.send.nonsense=kill", "there is no place 'channel.send.nonsense'"),
    ],
)
def test_a_place_fails_only_as_it_can(asked: pytest.MonkeyPatch, point: str, words: str) -> None:
    asked.setenv(VARIABLE, point)
    with pytest.raises(ValueError, match=words):
        verify(["settle_done"], ["busy"])


def test_a_message_is_a_place_before_it_is_sent_and_when_it_has_arrived(asked: pytest.MonkeyPatch) -> None:
    asked.setenv(VARIABLE, "channel.send.ack=fail:EAGAIN@2;channel.receive.ack=fail:EINTR")
    ours, theirs = Channel.pair()
    for number in (1, 2):
        ours.send({"ack": number, "jobs": 0})
    assert theirs.receive() == []
    assert theirs.receive() == [({"ack": 1, "jobs": 0}, [])]
    ours.flush()
    assert theirs.receive() == [({"ack": 2, "jobs": 0}, [])]
    ours.close()
    theirs.close()


def test_every_message_that_our_processes_send_has_its_place() -> None:
    sources = "\n".join(path.read_text() for path in Path(failpoints.__file__).parents[1].rglob("*.py"))
    made = set(re.findall(r"""\{\s*"(\w+)":""", sources))
    sent = set(re.findall(r"""send\(\s*\{\s*"(\w+)":""", sources)) - {"type"}  # to a browser
    assert sent <= set(failpoints.MESSAGES) <= made
